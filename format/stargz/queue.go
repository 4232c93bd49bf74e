package stargz

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash"
	"io"
)

// queue writes members in order, some of which are still being compressed.
type queue struct {
	ctx      context.Context // of Write
	out      io.Writer
	sum      hash.Hash
	compress Compressor
	most     int // members at a time
	members  []member
	offset   int64 // bytes that were written
	table    tableWriter
}

// member is a member that is being compressed.
type member struct {
	wait  func() ([]byte, error)
	chunk *tableRow // of the chunk at its begin, if there is one
	file  *tableRow // of the file that ends with the chunk, if its end is part of the table
}

// add adds a member.
func (q *queue) add(plain []byte, m member) error {
	if err := q.ctx.Err(); err != nil {
		return err
	}
	if len(q.members) == q.most {
		if err := q.next(); err != nil {
			return err
		}
	}
	m.wait = q.compress(plain)
	q.members = append(q.members, m)
	return nil
}

// next writes the oldest member.
func (q *queue) next() error {
	m := q.members[0]
	q.members = q.members[1:]
	b, err := m.wait()
	if err != nil {
		return fmt.Errorf("compress: %w", err)
	}
	if m.chunk != nil {
		m.chunk.Offset = q.offset
		if err := q.table.done(m.chunk); err != nil {
			return err
		}
	}
	if err := q.write(b); err != nil || m.file == nil {
		return err
	}
	m.file.EndOffset = q.offset
	return q.table.done(m.file)
}

// flush writes all members.
func (q *queue) flush() error {
	for len(q.members) > 0 {
		if err := q.next(); err != nil {
			return err
		}
	}
	return nil
}

func (q *queue) write(b []byte) error {
	q.sum.Write(b)
	q.offset += int64(len(b))
	_, err := q.out.Write(b)
	return err
}

// begin adds a row to the table. It is written when done was called waits times.
func (q *queue) begin(r row) *tableRow {
	t := &tableRow{row: r, waits: 1}
	q.table.rows = append(q.table.rows, t)
	return t
}

// tableRow is a row that waits for its digest and its offset.
type tableRow struct {
	row
	waits int
}

// tableWriter writes the rows of a table, in order.
type tableWriter struct {
	text bytes.Buffer
	rows []*tableRow // that are not written
}

// done notes that a row waits for one thing less, and writes what is complete.
func (w *tableWriter) done(r *tableRow) error {
	r.waits--
	for len(w.rows) > 0 && w.rows[0].waits == 0 {
		separator := ",\n"
		if w.text.Len() == 0 {
			separator = `{"version":1,"entries":[` + "\n"
		}
		w.text.WriteString(separator)
		b, err := json.Marshal(w.rows[0].row)
		if err != nil {
			return fmt.Errorf("row %q of the table: %w", shorten(w.rows[0].Name), err)
		}
		w.text.Write(b)
		w.rows = w.rows[1:]
		if w.text.Len() > MaxPlain {
			return fmt.Errorf("a table of more than %d bytes", MaxPlain)
		}
	}
	return nil
}

// finish returns the table, which ends in end.
func (w *tableWriter) finish(end string) []byte {
	if w.text.Len() == 0 {
		w.text.WriteString(`{"version":1,"entries":[`)
	}
	w.text.WriteString(end)
	return w.text.Bytes()
}
