package disk

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"

	"lighter/format/chunk"
)

// writeTable writes the segment's table, so that the next start need not scan the segment. ids are
// the records' whole IDs. The table is not synced: a table that a crash has damaged is not used.
func (s *segment) writeTable(records []record, ids []byte) error {
	b := make([]byte, 0, len(records)*tableEntry+tableFooter)
	for i, r := range records {
		b = append(b, ids[i*chunk.Size:(i+1)*chunk.Size]...)
		b = binary.LittleEndian.AppendUint32(b, r.length)
		b = binary.LittleEndian.AppendUint32(b, r.offset)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(records)))
	b = binary.LittleEndian.AppendUint32(b, tableMagic)
	temp := s.path + ".table" + newSuffix
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, s.path+".table")
}

// readTable reads a segment's table into the given buffer, and decodes its records.
func (s *segment) readTable(table *bytes.Buffer) error {
	file, err := os.Open(s.path + ".table")
	if err != nil {
		return err
	}
	defer file.Close()
	table.Reset()
	if _, err := table.ReadFrom(file); err != nil {
		return err
	}
	return s.decodeTable(table.Bytes())
}

// decodeTable checks a table and sets the segment's records from it.
func (s *segment) decodeTable(b []byte) error {
	if len(b) < tableFooter {
		return io.ErrUnexpectedEOF
	}
	footer := b[len(b)-tableFooter:]
	entries := b[:len(b)-tableFooter]
	n := binary.LittleEndian.Uint32(footer[4:])
	if binary.LittleEndian.Uint32(footer[8:]) != tableMagic || int64(n)*tableEntry != int64(len(entries)) ||
		crc32.Checksum(entries, castagnoli) != binary.LittleEndian.Uint32(footer) {
		return errDamaged
	}
	s.records = make([]record, 0, n)
	for ; len(entries) > 0; entries = entries[tableEntry:] {
		r := record{
			key:    keyOf(chunk.ID(entries[:chunk.Size])),
			length: binary.LittleEndian.Uint32(entries[chunk.Size:]),
			offset: binary.LittleEndian.Uint32(entries[chunk.Size+4:]),
		}
		if r.length == 0 || r.length > chunk.MaxLength || int64(r.offset)+recordSize(r.length) > s.size {
			return errDamaged
		}
		s.records = append(s.records, r)
	}
	return nil
}

// idsIn returns the whole IDs of a table that decodeTable has accepted.
func idsIn(table []byte) []byte {
	ids := make([]byte, 0, len(table)/tableEntry*chunk.Size)
	for ; len(table) > tableFooter; table = table[tableEntry:] {
		ids = append(ids, table[:chunk.Size]...)
	}
	return ids
}
