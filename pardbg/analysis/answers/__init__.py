"""Values that screens, reports and checks show, assembled from the analysis rooms below."""
