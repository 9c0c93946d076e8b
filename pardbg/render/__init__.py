"""Pure drawing: frozen values in, lines of styled cells out. No terminal, no widgets."""
