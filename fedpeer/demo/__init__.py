"""`fedpeer demo`: one coordinator and its participants as real processes, on real data, on this machine."""
