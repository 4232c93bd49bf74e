package catalogtest

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A table is large if it has at least manyRows rows. A partial index is small if it has fewer.
const manyRows = 1000

// Plans finds the statements for which the database reads all rows of a large table.
type Plans struct {
	*Large
	tables []string            // the large tables
	small  map[string]struct{} // the small partial indexes
}

// Plans returns the Plans for the large tables and small partial indexes that the database has now.
func (l *Large) Plans(ctx context.Context) (*Plans, error) {
	p := &Plans{Large: l, small: map[string]struct{}{}}
	query := `SELECT name FROM sqlite_master WHERE type = 'table'`
	if l.postgres {
		query = `SELECT tablename FROM pg_tables WHERE schemaname = 'public'`
	}
	names, err := l.texts(ctx, query)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if large, err := l.isLarge(ctx, name); err != nil {
			return nil, err
		} else if large {
			p.tables = append(p.tables, name)
		}
	}
	return p, p.findSmall(ctx)
}

// isLarge reports whether at least manyRows rows match. rows is the FROM clause of the query.
func (l *Large) isLarge(ctx context.Context, rows string) (bool, error) {
	n := 0
	err := l.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM (SELECT 1 FROM `+rows+
		fmt.Sprintf(` LIMIT %d) AS counted`, manyRows)).Scan(&n)
	return n == manyRows, err
}

// findSmall finds the partial indexes that have few rows.
func (p *Plans) findSmall(ctx context.Context) error {
	query := `SELECT name || ' ' || tbl_name || ' WHERE ' || substr(sql, instr(sql, ' WHERE ') + 7)
		FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'`
	if p.postgres {
		query = `SELECT indexname || ' ' || tablename || ' WHERE ' || split_part(indexdef, ' WHERE ', 2)
			FROM pg_indexes WHERE schemaname = 'public' AND indexdef LIKE '% WHERE %'`
	}
	indexes, err := p.texts(ctx, query)
	for _, index := range indexes {
		name, rows, _ := strings.Cut(index, " ")
		large, err := p.isLarge(ctx, rows)
		if err != nil {
			return err
		}
		if !large {
			p.small[name] = struct{}{}
		}
	}
	return err
}

// texts returns the last column of a query's rows, as text.
func (l *Large) texts(ctx context.Context, query string, args ...any) (texts []string, err error) {
	rows, err := l.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		if err := rows.Scan(values...); err != nil {
			return nil, err
		}
		texts = append(texts, fmt.Sprint(*values[len(values)-1].(*any)))
	}
	return texts, rows.Err()
}

// Scans returns the large tables of which the database reads all rows for a statement, and the
// statement's plan. A query that reads an index in order and ends at its LIMIT does not count.
func (p *Plans) Scans(ctx context.Context, statement string, args []any) (tables []string, plan string, err error) {
	if args == nil { // the statement was prepared
		args = make([]any, strings.Count(statement, "?"))
		if p.postgres {
			args = make([]any, len(slices.Compact(regexp.MustCompile(`\$[0-9]+`).FindAllString(statement, -1))))
		}
	}
	explain := "EXPLAIN QUERY PLAN "
	if p.postgres {
		explain = "EXPLAIN "
	}
	lines, err := p.texts(ctx, explain+statement, args...)
	if err != nil {
		return nil, "", fmt.Errorf("explain %s: %w", statement, err)
	}
	plan = strings.Join(lines, "\n")
	limited := strings.Contains(statement, "LIMIT") && !strings.Contains(plan, "TEMP B-TREE")
	for i, line := range lines {
		name, indexed := p.scanned(line, append(lines, "")[i+1])
		recursive := i > 0 && lines[i-1] == "RECURSIVE STEP" // a scan of the rows that the last step has added
		if name == "" || indexed && limited || recursive {
			continue
		}
		if table := p.tableOf(statement, name); table != "" && !slices.Contains(tables, table) {
			tables = append(tables, table)
		}
	}
	return tables, plan, nil
}

var (
	sqliteScan   = regexp.MustCompile(`^SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?`)
	postgresScan = regexp.MustCompile(`(?:Seq Scan|Index (?:Only )?Scan(?: Backward)? using (\w+)) on (\w+)`)
)

// scanned returns the table, or its alias, that a line of a plan scans, and whether it scans an
// index of that table. Scans of small indexes do not count.
func (p *Plans) scanned(line, next string) (name string, indexed bool) {
	index := ""
	if m := sqliteScan.FindStringSubmatch(line); m != nil {
		name, index = m[1], m[2]
	} else if m := postgresScan.FindStringSubmatch(line); m != nil && !strings.Contains(next, "Index Cond:") {
		name, index = m[2], m[1]
	}
	if _, small := p.small[index]; small {
		return "", false
	}
	return name, index != ""
}

// tableOf returns the large table that a name in a plan stands for, or "".
func (p *Plans) tableOf(statement, name string) string {
	for _, table := range p.tables {
		if table == name || regexp.MustCompile(`\b`+table+`\s+(?:AS\s+)?`+name+`\b`).MatchString(statement) {
			return table
		}
	}
	return ""
}
