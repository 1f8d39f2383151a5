"""Keys that leave memory: which do, what of them is on the disk, and how they come back."""
