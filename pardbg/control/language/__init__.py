"""Language of control: verbs, expressions, rank sets, watches, and their manual. Pure text."""
