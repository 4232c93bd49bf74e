package main

import (
	stdgzip "compress/gzip"
	"errors"
	"io"
	"os/exec"
	"strconv"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/klauspost/pgzip"
)

type format string

const (
	formatGzip format = "gzip"
	formatZstd format = "zstd"
	formatTar  format = "tar" // not compressed
)

// compressor is a program or library at one level. A gzip compressor writes a header of 10 bytes,
// without a file name.
type compressor struct {
	name   string
	format format
	open   func(w io.Writer) (io.WriteCloser, error)
}

// compressors has the compressors of image builders. BuildKit, containerd and docker use Go's gzip at
// level 6, go-containerregistry (crane, ko, kaniko) at level 1. containers/image (skopeo, Podman,
// Buildah) uses pgzip at its default level, 5, in blocks of 1 MiB, and umoci in blocks of 256 KiB.
// All of them use klauspost's zstd, at its default level or at one that the user has chosen. zlib
// is that of Java and Python; pigz and gzip are used by scripts.
var compressors = []compressor{
	goGzip(6), goGzip(1), goGzip(9),
	pgzipped(5, 1<<20), pgzipped(5, 256<<10), pgzipped(1, 1<<20), pgzipped(6, 1<<20), pgzipped(9, 1<<20),
	klauspostGzip(5), klauspostGzip(1), klauspostGzip(6), klauspostGzip(9),
	program("pigz 6", formatGzip, "pigz", "-6", "-n"), program("pigz 9", formatGzip, "pigz", "-9", "-n"),
	program("pigz 6, one thread", formatGzip, "pigz", "-6", "-n", "-p", "1"),
	program("zlib 6", formatGzip, "python3", "-c", pythonGzip, "6"),
	program("zlib 1", formatGzip, "python3", "-c", pythonGzip, "1"),
	program("zlib 9", formatGzip, "python3", "-c", pythonGzip, "9"),
	program("gzip 6", formatGzip, "gzip", "-6", "-n"), program("gzip 9", formatGzip, "gzip", "-9", "-n"),
	klauspostZstd(zstd.SpeedDefault), klauspostZstd(zstd.SpeedFastest),
	klauspostZstd(zstd.SpeedBetterCompression), klauspostZstd(zstd.SpeedBestCompression),
	program("libzstd 3", formatZstd, "zstd", "-c", "-3"),
	program("libzstd 19", formatZstd, "zstd", "-c", "-19"),
	program("libzstd 3, no checksum", formatZstd, "zstd", "-c", "-3", "--no-check"),
}

const pythonGzip = `
import sys, zlib
c = zlib.compressobj(int(sys.argv[1]), zlib.DEFLATED, 31)
while data := sys.stdin.buffer.read(1 << 20): sys.stdout.buffer.write(c.compress(data))
sys.stdout.buffer.write(c.flush())
`

func goGzip(level int) compressor {
	return compressor{"go " + strconv.Itoa(level), formatGzip,
		func(w io.Writer) (io.WriteCloser, error) { return stdgzip.NewWriterLevel(w, level) }}
}

func klauspostGzip(level int) compressor {
	return compressor{"klauspost gzip " + strconv.Itoa(level), formatGzip,
		func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, level) }}
}

// pgzipped compresses blocks of a size. The number of threads does not change its output.
func pgzipped(level, block int) compressor {
	return compressor{"pgzip " + strconv.Itoa(level) + ", " + strconv.Itoa(block>>10) + " KiB", formatGzip,
		func(w io.Writer) (io.WriteCloser, error) {
			z, err := pgzip.NewWriterLevel(w, level)
			if err != nil {
				return nil, err
			}
			return z, z.SetConcurrency(block, 2)
		}}
}

func klauspostZstd(level zstd.EncoderLevel) compressor {
	return compressor{"klauspost zstd " + level.String(), formatZstd,
		func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w, zstd.WithEncoderLevel(level)) }}
}

// program is a command that reads a tar stream from its standard input and writes it compressed.
func program(name string, f format, command string, args ...string) compressor {
	return compressor{name, f, func(w io.Writer) (io.WriteCloser, error) {
		cmd := exec.Command(command, args...)
		cmd.Stdout = w
		in, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		return running{in, cmd}, cmd.Start()
	}}
}

// running is the standard input of a program.
type running struct {
	io.WriteCloser
	cmd *exec.Cmd
}

// Close waits for the end of the program.
func (r running) Close() error {
	return errors.Join(r.WriteCloser.Close(), r.cmd.Wait())
}
