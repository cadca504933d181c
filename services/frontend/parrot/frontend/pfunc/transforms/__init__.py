"""The prototype's path of transforms."""
