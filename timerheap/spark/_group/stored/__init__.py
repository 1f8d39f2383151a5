"""What a key group is in the checkpoint: the kinds of its chunks, their bytes, and the manifest."""
