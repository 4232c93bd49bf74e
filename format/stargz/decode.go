package stargz

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"lighter/format/chunk"
	"lighter/format/compress"
)

// tableName is the name of the file in the tar of an eStargz table.
const tableName = "stargz.index.json"

// Decode reads the table of a layer from its stored bytes: those of the blob that t names, or all
// bytes of an external table. It reads stored to its end, but at most MaxStored bytes. It may take
// some seconds, for 100,000 files about half of one, and ends with ctx.
//
// Decode returns an error if the bytes match not all of the digests that t has, exceed a bound, or
// contradict themselves. The error wraps a *chunk.InvalidError if they are not the bytes that t
// names: they are damaged, or have another digest or length. It wraps a *tree.LimitError if the
// layer takes too much memory, io.ErrUnexpectedEOF if stored ends early, and an error of stored
// itself.
func Decode(ctx context.Context, t Table, stored io.Reader) (*Layer, error) {
	l, err := decode(ctx, t, stored)
	if err != nil {
		return nil, fmt.Errorf("decode the table of contents of a layer (%s): %w", t.Format, err)
	}
	return l, nil
}

func decode(ctx context.Context, t Table, stored io.Reader) (*Layer, error) {
	in := newDigested(stored, MaxStored, "stored", t.Stored)
	plain, err := openTable(t.Format, in)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	text := newDigested(plain, MaxPlain, "plain", t.Plain)
	l, err := decodeText(ctx, t, text)
	if err != nil {
		return nil, err
	}
	if err := text.check(t.PlainLength); err != nil {
		return nil, &chunk.InvalidError{What: "the table", Err: fmt.Errorf("its plain bytes: %w", err)}
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return nil, fmt.Errorf("read what follows it: %w", err)
	}
	if err := in.check(t.Length); err != nil {
		return nil, &chunk.InvalidError{What: "the table", Err: fmt.Errorf("its stored bytes: %w", err)}
	}
	return l, nil
}

// openTable returns the plain table.
func openTable(format Format, stored io.Reader) (io.ReadCloser, error) {
	switch format {
	case StargzZstd, ContainersZstd:
		return compress.ZstdPart(stored)
	case EStargz:
	default:
		return nil, errors.New("unknown format")
	}
	z, err := compress.GzipPart(stored)
	if err != nil {
		return nil, err
	}
	archive := tar.NewReader(z)
	h, err := archive.Next()
	if err == nil && h.Name != tableName {
		err = fmt.Errorf("file %q, want %q", shorten(h.Name), tableName)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find it in its archive: %w", err), z.Close())
	}
	return &inArchive{archive, z}, nil
}

// inArchive is a file in a compressed archive.
type inArchive struct {
	io.Reader
	io.Closer
}

// decodeText reads the JSON: one object with a version and a list of rows, and nothing behind it.
func decodeText(ctx context.Context, t Table, text io.Reader) (*Layer, error) {
	in := &rowReader{ctx: ctx, r: text}
	// checkName finds invalid UTF-8. To refuse duplicates, the decoder would keep all names of an
	// object in memory.
	dec := jsontext.NewDecoder(in, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	in.offset = dec.InputOffset
	b := newBuilder(t)
	version, seen := int64(0), false
	err := readFields(dec, func(key []byte) (err error) {
		in.allow()
		what := string(key)
		switch what {
		case "version":
			err = readNumber(dec, &version)
		case "entries":
			if seen {
				return errors.New("two lists of entries")
			}
			seen = true
			err = decodeRows(dec, in, b)
		default:
			err = skip(dec, key)
		}
		if err != nil {
			return fmt.Errorf("read %q: %w", shorten(what), noEOF(err))
		}
		in.allow()
		return nil
	})
	if err != nil {
		return nil, err
	}
	if version != 1 {
		return nil, fmt.Errorf("version %d, want 1", version)
	}
	in.allow()
	switch _, err := dec.ReadToken(); {
	case err == nil:
		return nil, errors.New("something follows the end of the table")
	case err != io.EOF:
		return nil, fmt.Errorf("something follows the end of the table: %w", err)
	}
	return b.finish()
}

func decodeRows(dec *jsontext.Decoder, in *rowReader, b *builder) error {
	switch token, err := dec.ReadToken(); {
	case err != nil:
		return err
	case token.Kind() == jsontext.KindNull:
		return nil // as containers/storage writes an empty layer
	case token.Kind() != jsontext.KindBeginArray:
		return fmt.Errorf("got %s, want [", shorten(token.String()))
	}
	r := row{}
	for n := 0; dec.PeekKind() != jsontext.KindEndArray; n++ {
		in.allow()
		last := r
		r = row{}
		if err := r.decode(dec, &last); err != nil {
			return fmt.Errorf("row %d: %w", n, noEOF(err))
		}
		if err := b.add(&r); err != nil {
			return fmt.Errorf("row %d, %q: %w", n, shorten(r.Name), err)
		}
		in.allow()
	}
	_, err := dec.ReadToken()
	return err
}

// readFields reads an object. read reads the value of a key, which is as the JSON has it: not
// unquoted. It must not keep the key.
func readFields(dec *jsontext.Decoder, read func(key []byte) error) error {
	switch token, err := dec.ReadToken(); {
	case err != nil:
		return noEOF(err)
	case token.Kind() == jsontext.KindNull:
		return nil
	case token.Kind() != jsontext.KindBeginObject:
		return fmt.Errorf("got %s, want {", shorten(token.String()))
	}
	for dec.PeekKind() != jsontext.KindEndObject {
		key, err := dec.ReadValue()
		if err != nil {
			return noEOF(err)
		}
		if err := read(key[1 : len(key)-1]); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

// skip skips the value of an unknown key. A key with an escape may be one that others know.
func skip(dec *jsontext.Decoder, key []byte) error {
	if bytes.IndexByte(key, '\\') >= 0 {
		return fmt.Errorf("the key %s is escaped", shorten(string(key)))
	}
	return dec.SkipValue()
}

// readNumber reads an integer, or null, which changes nothing.
func readNumber[T int | int64](dec *jsontext.Decoder, to *T) error {
	value, err := dec.ReadValue()
	if err != nil || value.Kind() == jsontext.KindNull {
		return err
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || int64(T(n)) != n {
		return fmt.Errorf("%s is not an integer", shorten(string(value)))
	}
	*to = T(n)
	return nil
}

// readText reads a string, or null, which changes nothing. If the string equals known, it takes no
// memory.
func readText(dec *jsontext.Decoder, to *string, known string) error {
	value, err := dec.ReadValue()
	if err != nil || value.Kind() == jsontext.KindNull {
		return err
	}
	if value.Kind() != jsontext.KindString {
		return fmt.Errorf("%s is not a string", shorten(string(value)))
	}
	text := unquote(value)
	if *to = known; string(text) != known {
		*to = string(text)
	}
	return nil
}

// unquote returns the text of a string. Bytes that are not UTF-8 become U+FFFD.
func unquote(value jsontext.Value) []byte {
	text := value[1 : len(value)-1]
	if bytes.IndexByte(text, '\\') < 0 && utf8.Valid(text) {
		return text
	}
	text, _ = jsontext.AppendUnquote(nil, value) // the error says that there are such bytes
	return text
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// rowReader bounds what the decoder keeps in memory: it gives the decoder at most maxRow bytes
// beyond the position of the last call of allow.
type rowReader struct {
	ctx     context.Context // of Decode
	r       io.Reader
	offset  func() int64 // how many bytes the decoder has used
	read    int64
	allowed int64
}

func (r *rowReader) allow() { r.allowed = r.offset() + maxRow }

func (r *rowReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if r.allowed == 0 {
		r.allow()
	}
	left := r.allowed - r.read
	if left <= 0 {
		return 0, fmt.Errorf("a row of more than %d bytes", maxRow)
	}
	n, err := r.r.Read(p[:min(int64(len(p)), left)])
	r.read += int64(n)
	return n, err
}

// digested is a reader that hashes what it reads, up to a limit, if its digest is known.
type digested struct {
	r           io.Reader
	what        string
	limit, read int64
	want        chunk.ID // zero: not known
	sum         hash.Hash
}

func newDigested(r io.Reader, limit int64, what string, want chunk.ID) *digested {
	return &digested{r: r, what: what, limit: limit, want: want, sum: sha256.New()}
}

func (d *digested) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	if !d.want.IsZero() {
		d.sum.Write(p[:n])
	}
	if d.read += int64(n); d.read > d.limit {
		return 0, fmt.Errorf("more than the limit of %d %s bytes", d.limit, d.what)
	}
	return n, err
}

// check compares what was read with its digest and a length. Length 0 is not compared.
func (d *digested) check(length int64) error {
	if length > 0 && d.read != length {
		err := fmt.Errorf("%d, want %d", d.read, length)
		if d.read < length {
			err = fmt.Errorf("%w: %w", err, io.ErrUnexpectedEOF)
		}
		return err
	}
	if got := chunk.ID(d.sum.Sum(nil)); !d.want.IsZero() && got != d.want {
		return fmt.Errorf("their digest is %s, want %s", got.Short(), d.want.Short())
	}
	return nil
}
