"""From what a node is to how it should be set: settings as data, conditions, and the plan that follows from them."""
