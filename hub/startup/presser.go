package startup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"lighter/format/compress"
	"lighter/format/pack"
)

// The library that all units are compressed with has no level that comes near the
// highest ones of the zstd program. Where that is installed it presses; what it gives is
// decoded and compared, as a node would find out too late that it is something else.
const (
	pressProgram = "zstd"
	programLevel = "-18"
	libraryLevel = zstd.SpeedBestCompression
	// pressNice is the program's priority: the lowest. pressLimit is how long it may take
	// for a unit, which is a fifth of a second if it has a processor, and pressEnd how long
	// to end.
	pressNice  = 19
	pressLimit = 20 * time.Second
	pressEnd   = 5 * time.Second
)

// presser compresses as well as it goes. It is for one goroutine.
type presser struct {
	program string // empty: there is none, or none that can be trusted
	library *zstd.Encoder
	decoder *zstd.Decoder
	log     *slog.Logger
}

func newPresser(log *slog.Logger) *presser {
	p := &presser{log: log}
	if path, err := exec.LookPath(pressProgram); err == nil {
		p.program = path
	}
	p.library, p.decoder = compress.UnitEncoder(libraryLevel, pack.MaxPlain), compress.UnitDecoder(pack.MaxPlain)
	return p
}

func (p *presser) close() { p.decoder.Close() }

// press appends the content, compressed as one frame, to dst.
func (p *presser) press(ctx context.Context, dst, content []byte) ([]byte, error) {
	if p.program != "" {
		out, err := p.run(ctx, content)
		if err == nil {
			return append(dst, out...), nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p.log.Warn("startup packs are pressed without the zstd program", "program", p.program, "cause", err)
		p.program = ""
	}
	return p.library.EncodeAll(content, dst), nil
}

// run has the program compress the content. With its length known the frame needs no
// more memory to be decoded than that.
func (p *presser) run(ctx context.Context, content []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, pressLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.program, programLevel, "--quiet", "--stdout", "--no-check", "--single-thread",
		"--stream-size="+strconv.Itoa(len(content)))
	cmd.Env = []string{} // some of it would be options
	cmd.WaitDelay = pressEnd
	out := &bounded{most: pack.MaxStored}
	said := &bounded{most: 1 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(content), out, said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, pressNice) // it may have ended
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(said.all))
	}
	plain, err := p.decoder.DecodeAll(out.all, nil)
	if err != nil || !bytes.Equal(plain, content) {
		return nil, fmt.Errorf("what it wrote is not what it was given (%v)", err)
	}
	return out.all, nil
}

// bounded keeps what a program writes, up to a bound.
type bounded struct {
	all  []byte
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.all)+len(p) > b.most {
		return 0, errors.New("it writes too much")
	}
	b.all = append(b.all, p...)
	return len(p), nil
}
