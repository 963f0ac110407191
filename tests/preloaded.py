"Imported last by the process from which others are forked (forked.py), so that its settings apply to all of them"
import forked

forked.cheaply()
