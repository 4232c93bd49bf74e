package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	kgzip "github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/vbatts/tar-split/tar/asm"
	"github.com/vbatts/tar-split/tar/storage"
)

// report is what was measured of a layer. Sizes are in bytes, times in seconds of processor time.
type report struct {
	Layout     string  `json:"layout"`
	Digest     string  `json:"digest"`
	Bytes      int64   `json:"bytes"`
	Tar        int64   `json:"tar"`
	Skeleton   int64   `json:"skeleton"`  // the tar stream without contents of files, compressed
	TarSplit   int64   `json:"tar_split"` // the metadata of tar-split, compressed as docker does
	Header     string  `json:"header"`    // the header of the gzip stream
	Compressor string  `json:"compressor,omitempty"`
	Same       int64   `json:"same"` // bytes at the start that Compressor, or else the best compressor, makes equal
	Decompress float64 `json:"decompress_s"`
	Compress   float64 `json:"compress_s,omitempty"` // of the compressor that makes the same blob
}

// measure tries the compressors until one makes the same blob.
func (b blob) measure(all []compressor) (r report, err error) {
	r = report{Layout: b.layout, Digest: b.digest, Bytes: b.size}
	if err := b.measureSkeleton(&r); err != nil {
		return r, err
	}
	r.Decompress, err = processorTime(func() error {
		return b.read(func(tar io.Reader, _ *bufio.Reader, _ format) error {
			_, err := io.Copy(io.Discard, tar)
			return err
		})
	})
	if err != nil {
		return r, err
	}
	for _, c := range all {
		var same int64
		var equal bool
		took, err := processorTime(func() error {
			return b.read(func(tar io.Reader, blob *bufio.Reader, f format) (err error) {
				if f == c.format {
					same, equal, err = compare(c, tar, blob)
				}
				return err
			})
		})
		if err != nil {
			return r, fmt.Errorf("compress with %s: %w", c.name, err)
		}
		r.Same = max(r.Same, same)
		if equal {
			r.Compressor, r.Same, r.Compress = c.name, same, took-r.Decompress
			return r, nil
		}
	}
	return r, nil
}

// read calls f with two independent readers: of a layer's tar stream, and of its blob after the
// header of gzip.
func (b blob) read(f func(tar io.Reader, blob *bufio.Reader, format format) error) error {
	var files [2]*bufio.Reader
	for i := range files {
		file, err := os.Open(b.path)
		if err != nil {
			return err
		}
		defer file.Close()
		files[i] = bufio.NewReaderSize(file, 1<<20)
	}
	magic, err := files[0].Peek(4)
	if err != nil {
		return err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := kgzip.NewReader(files[0])
		if err != nil {
			return err
		}
		if _, err := gzipHeader(files[1]); err != nil {
			return err
		}
		return f(z, files[1], formatGzip)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(files[0], zstd.WithDecoderConcurrency(1))
		if err != nil {
			return err
		}
		defer z.Close()
		return f(z, files[1], formatZstd)
	}
	return f(files[0], files[1], formatTar)
}

// compare compresses a tar stream until the first byte that differs from the blob. It returns the
// number of equal bytes, and whether the whole blob is equal.
func compare(c compressor, tar io.Reader, blob *bufio.Reader) (same int64, equal bool, err error) {
	out := &comparer{want: blob}
	if c.format == formatGzip {
		out.skip = 10
	}
	w, err := c.open(out)
	if err != nil {
		return 0, false, err
	}
	_, err = io.Copy(w, tar)
	err = errors.Join(err, w.Close())
	if out.differs {
		return out.same, false, nil // out has stopped the compressor
	}
	if err != nil {
		return 0, false, err
	}
	_, err = blob.ReadByte()
	return out.same, err == io.EOF, nil
}

// errDiffers stops a compressor.
var errDiffers = errors.New("a byte differs")

// comparer is a writer that compares what it gets with a blob.
type comparer struct {
	want    *bufio.Reader
	skip    int // bytes that are not compared
	same    int64
	differs bool
}

func (c *comparer) Write(p []byte) (int, error) {
	skipped := min(c.skip, len(p))
	c.skip -= skipped
	for rest := p[skipped:]; len(rest) > 0; {
		if c.want.Buffered() == 0 {
			c.want.Peek(1) // fills the buffer, unless the blob ends here
		}
		want, _ := c.want.Peek(min(len(rest), c.want.Buffered()))
		if len(want) == 0 || !bytes.Equal(want, rest[:len(want)]) {
			c.differs = true
			return 0, errDiffers
		}
		c.same += int64(len(want))
		rest = rest[len(want):]
		c.want.Discard(len(want))
	}
	return len(p), nil
}

// gzipHeader reads the header of a gzip stream.
func gzipHeader(r *bufio.Reader) ([]byte, error) {
	const hasCRC, hasExtra, hasName, hasComment = 2, 4, 8, 16
	header := make([]byte, 10)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	flags := header[3]
	more := func(n int) error {
		part := make([]byte, n)
		_, err := io.ReadFull(r, part)
		header = append(header, part...)
		return err
	}
	if flags&hasExtra != 0 {
		if err := more(2); err != nil {
			return nil, err
		}
		if err := more(int(header[10]) | int(header[11])<<8); err != nil {
			return nil, err
		}
	}
	for _, flag := range []byte{hasName, hasComment} {
		if flags&flag != 0 {
			text, err := r.ReadBytes(0)
			if err != nil {
				return nil, err
			}
			header = append(header, text...)
		}
	}
	if flags&hasCRC != 0 {
		if err := more(2); err != nil {
			return nil, err
		}
	}
	return header, nil
}

// measureSkeleton fills the sizes of a report.
func (b blob) measureSkeleton(r *report) error {
	file, err := os.Open(b.path)
	if err != nil {
		return err
	}
	defer file.Close()
	if header, err := gzipHeader(bufio.NewReader(file)); err == nil && header[0] == 0x1f && header[1] == 0x8b {
		r.Header = hex.EncodeToString(header)
	}
	var split, parts counter
	splitGzip := gzip.NewWriter(&split)
	partsZstd, err := zstd.NewWriter(&parts, zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	if err != nil {
		return err
	}
	err = b.read(func(tar io.Reader, _ *bufio.Reader, _ format) error {
		tar, err := asm.NewInputTarStream(tar, storage.NewJSONPacker(splitGzip), nil)
		if err != nil {
			return err
		}
		r.Tar, err = skeleton(tar, partsZstd, io.Discard)
		return err
	})
	err = errors.Join(err, splitGzip.Close(), partsZstd.Close())
	r.TarSplit, r.Skeleton = int64(split), int64(parts)
	return err
}

// counter is a writer that counts bytes.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// processorTime returns the seconds of processor time that f takes, with programs that it starts.
func processorTime(f func() error) (float64, error) {
	before := used()
	err := f()
	return (used() - before).Seconds(), err
}

// used returns the processor time of this process, and of its children that have ended.
func used() (sum time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			panic(err) // only an unknown who fails
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}
