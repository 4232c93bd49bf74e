package directory

import (
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// text is a Stream, and the Links of a directory with one file.
type text struct {
	linked
	io.Reader
	closed bool
}

// Read waits until its context is done, if a thread reads.
func (s *text) Read(ctx context.Context, b []byte) (int, error) {
	if _, ok := fuse.FromContext(ctx); ok {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return s.Reader.Read(b)
}

func (s *text) Close() { s.closed = true }

func (s *text) Open(name string, _ uint32) (Stream, error) {
	if name != "file" {
		return nil, syscall.EMFILE
	}
	return s, nil
}

// A file can only be read, once, from its beginning to its end. A signal does not interrupt a read,
// unless it kills the thread.
func TestStreamIsReadOnce(t *testing.T) {
	s := &text{Reader: io.MultiReader(strings.NewReader("text"), strings.NewReader("!"))}
	d := &Directory{config: Config{Links: s}}
	other, file := &streamNode{dir: d, name: "other"}, &streamNode{dir: d, name: "file"}
	if _, _, errno := file.Open(t.Context(), syscall.O_RDWR); errno != syscall.EROFS {
		t.Errorf("open for writing: %v, want EROFS", errno)
	}
	if _, _, errno := other.Open(t.Context(), syscall.O_RDONLY); errno != syscall.EMFILE {
		t.Errorf("got %v, want EMFILE", errno)
	}
	handle, _, errno := file.Open(t.Context(), syscall.O_RDONLY)
	if errno != fs.OK {
		t.Fatal(errno)
	}
	h := handle.(*streamHandle)
	signalled, signal := context.WithCancel(t.Context())
	signal()
	killed := fuse.NewContext(signalled, &fuse.Caller{Pid: 1 << 31}) // no thread has this number
	for _, c := range []struct {
		ctx  context.Context
		off  int64
		text string
		want syscall.Errno
	}{
		{t.Context(), 0, "text", fs.OK}, {t.Context(), 0, "", syscall.ESPIPE}, {killed, 4, "", syscall.EINTR},
		{signalled, 4, "!", fs.OK}, {t.Context(), 5, "", fs.OK},
	} {
		result, errno := h.Read(c.ctx, make([]byte, 100), c.off)
		if errno != c.want {
			t.Errorf("read at %d: got %v, want %v", c.off, errno, c.want)
		}
		if errno == fs.OK {
			if got, _ := result.Bytes(nil); string(got) != c.text {
				t.Errorf("read at %d: got %q, want %q", c.off, got, c.text)
			}
		}
	}
	s.Reader = iotest.ErrReader(fmt.Errorf("the hub has ended the connection: %w", io.EOF))
	if _, errno := h.Read(t.Context(), make([]byte, 1), 5); errno != syscall.EIO {
		t.Errorf("got %v, want EIO", errno)
	}
	if h.Release(t.Context()); !s.closed {
		t.Error("the stream is not closed")
	}
}
