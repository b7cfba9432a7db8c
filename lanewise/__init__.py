"""The ground floor: what every part of the toolkit may import. It imports no part."""
