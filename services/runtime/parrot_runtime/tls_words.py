"""What an error of TLS says, in words: libraries wrap it, and name it by OpenSSL's own names."""

from __future__ import annotations

import ssl
from typing import Final

_ALERTS: Final = {
    "UNKNOWN_CA": "it does not know the authority of this service's certificate",
    "CERTIFICATE_EXPIRED": "this service's certificate has expired",
    "BAD_CERTIFICATE": "it refuses this service's certificate: another authority, or expired",
    "CERTIFICATE_REQUIRED": "it wants a certificate, and was shown none",
}
"""What a server says of a client's certificate, by the last words of OpenSSL's name for it."""


def words_of(error: BaseException | None) -> str:
    """What TLS had to say in an error or in what led to it; empty: nothing."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not believed: {error.verify_message}"
        reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
        for end, words in _ALERTS.items():
            if reason.endswith(end):
                return words
        orig = getattr(error, "orig", None)
        error = orig if isinstance(orig, BaseException) else error.__cause__ or error.__context__
    return ""
