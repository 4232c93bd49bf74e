package startup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"lighter/format/compress"
	"lighter/format/pack"
)

// bestEncoder compresses at the highest level available. It is for one goroutine.
//
// The Go library for zstd has no level that comes near the highest ones of the zstd program, so the
// program is used where it is installed. Its output is decoded and compared, since nodes would
// notice an error too late.
type bestEncoder struct {
	program string // path; empty: missing or unreliable
	library *zstd.Encoder
	decoder *zstd.Decoder
	log     *slog.Logger
}

func newBestEncoder(log *slog.Logger) *bestEncoder {
	e := &bestEncoder{log: log}
	if path, err := exec.LookPath(zstdProgram); err == nil {
		e.program = path
	}
	e.library, e.decoder = compress.UnitEncoder(libraryLevel, pack.MaxPlain), compress.UnitDecoder(pack.MaxPlain)
	return e
}

func (e *bestEncoder) close() { e.decoder.Close() }

// encode appends the content, compressed as one frame, to dst.
func (e *bestEncoder) encode(ctx context.Context, dst, content []byte) ([]byte, error) {
	if e.program != "" {
		out, err := e.run(ctx, content)
		if err == nil {
			return append(dst, out...), nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		e.log.Warn("zstd program failed: recompressing without it", "program", e.program, "err", err)
		e.program = ""
	}
	return e.library.EncodeAll(content, dst), nil
}

// run compresses the content with the program. It passes the content's length to the program, so
// that decoding needs no more memory than that length.
func (e *bestEncoder) run(ctx context.Context, content []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.program, programLevel, "--quiet", "--stdout", "--no-check", "--single-thread",
		"--stream-size="+strconv.Itoa(len(content)))
	cmd.Env = []string{} // some variables are options
	cmd.WaitDelay = programEnd
	out := &boundedBuffer{most: pack.MaxStored}
	messages := &boundedBuffer{most: 1 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(content), out, messages
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, programNice) // it may have ended
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(messages.all))
	}
	plain, err := e.decoder.DecodeAll(out.all, nil)
	if err != nil {
		return nil, fmt.Errorf("decode the output: %w", err)
	}
	if !bytes.Equal(plain, content) {
		return nil, errors.New("the output decodes to other bytes")
	}
	return out.all, nil
}

// boundedBuffer keeps what a program writes, up to a bound.
type boundedBuffer struct {
	all  []byte
	most int // bytes
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if len(b.all)+len(p) > b.most {
		return 0, fmt.Errorf("the output exceeds %d bytes", b.most)
	}
	b.all = append(b.all, p...)
	return len(p), nil
}
