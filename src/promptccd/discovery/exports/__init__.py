"""Groups to take along: tables, folders of links, side files with keywords, and pictures to publish."""
