"""Parity of row records: the code, and which servers keep which parities. Pure: arrays and numbers in, the same out."""
