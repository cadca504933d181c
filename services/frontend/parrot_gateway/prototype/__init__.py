"""The prototype's wire API: its paths, bodies and answers, on this server's sessions."""
