"""The economics of fedpeer: degrees, payments, equilibria, settlement and the ledger.

Pure: values in, frozen values out. Randomness and time are arguments; nothing here opens a file or a socket.
"""
