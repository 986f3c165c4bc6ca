"""What is known of a training step before a slice is bought: by arithmetic, and by the TPU's own compiler."""
