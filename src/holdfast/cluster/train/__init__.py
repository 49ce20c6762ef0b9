"""The torch side of a worker: tables on servers as modules of an ordinary model; batches; steps. No socket."""
