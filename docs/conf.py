"""How Sphinx builds the documentation: Markdown pages (MyST), the furo theme, nothing fetched while building or reading."""

import llmbroker

project = "llmbroker"
author = "The llmbroker authors"
release = llmbroker.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "llmbroker"
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
nitpicky = False
