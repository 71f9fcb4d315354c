"""What a figure shows of its arrays."""


def shown(figure, config, results) -> list[list[dict]]:
    """The rows of every table, by heading; the figure is drawn as well."""
    assert figure.plot(config, results).axes
    return [
        [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for table in figure.tables(config, results)
    ]


def column(rows: list[dict], name: str) -> list:
    """One column of a table of `shown`."""
    return [row[name] for row in rows]
