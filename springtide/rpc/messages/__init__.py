"""Every message of the control plane, by subject."""
