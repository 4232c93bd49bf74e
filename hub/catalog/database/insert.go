package database

import (
	"context"
	"database/sql"
)

// RowsPerInsert is the number of rows that one statement inserts. Databases limit the number of a
// statement's arguments.
const RowsPerInsert = 200

// Inserter inserts rows into a table, RowsPerInsert with each statement. It belongs to one
// transaction and one goroutine. The caller calls Flush after the last row.
type Inserter struct {
	TX      Session
	Into    string // the table and its columns: chunks (n, id)
	Columns int
	// Key is the columns of a unique key. A row is left out if the table has a row with its key.
	// Empty: there is no such key.
	Key   string
	Added int64 // rows that were inserted

	full *sql.Stmt // inserts RowsPerInsert rows; the end of the transaction closes it
	args []any     // of rows that are not inserted yet
}

// Row inserts a row, or keeps it for the next statement.
func (i *Inserter) Row(ctx context.Context, values ...any) (err error) {
	i.args = append(i.args, values...)
	if len(i.args) < RowsPerInsert*i.Columns {
		return nil
	}
	if i.full == nil {
		if i.full, err = i.TX.Prepare(ctx, i.statement()); err != nil {
			return err
		}
	}
	n, err := count(i.full.ExecContext(ctx, i.args...))
	i.args = i.args[:0]
	i.Added += n
	return err
}

func (i *Inserter) statement() string {
	statement := `INSERT INTO ` + i.Into + ` VALUES ` + Places(len(i.args)/i.Columns, i.Columns)
	if i.Key != "" {
		statement += ` ON CONFLICT (` + i.Key + `) DO NOTHING`
	}
	return statement
}

// Flush inserts the rows that are kept.
func (i *Inserter) Flush(ctx context.Context) error {
	if len(i.args) == 0 {
		return nil
	}
	n, err := i.TX.ExecCount(ctx, i.statement(), i.args...)
	i.args = i.args[:0]
	i.Added += n
	return err
}
