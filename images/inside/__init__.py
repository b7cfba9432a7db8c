"""Programs that run inside an image or while it is made: the standard library of any Python from 3.10 on, no more."""
