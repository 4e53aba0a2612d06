"""Documents of unknown origin: bounded parsing, strict conversion to records, escaping of their texts."""

from evoengine.documents.conversion import Amount, FamilyName, LowerName, Text, UpperName, convert_document, key_path

__all__ = ["Amount", "FamilyName", "LowerName", "Text", "UpperName", "convert_document", "key_path"]

PUBLIC_MODULES = ("bounds", "escaping", "plain_numbers", "suggestions")
"""Modules and packages that other packages import."""
