"""The kubelet: pods as processes of this machine."""
