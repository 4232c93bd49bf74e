package directory

import (
	"context"
	"io"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"lighter/node/killed"
)

// Stream is an open file of a directory with links. It is read once, from its beginning to its end.
type Stream interface {
	// Read reads the next bytes, as io.Reader does: only io.EOF itself is the end. If it fails
	// because of ctx, it has read none.
	Read(ctx context.Context, b []byte) (int, error)
	Close()
}

// streamNode is a file that is read as a stream.
type streamNode struct {
	fs.Inode
	dir  *Directory
	name string
}

// streamHandle is an open file.
type streamHandle struct {
	stream Stream
	turn   chan struct{} // has an element while a read is in progress
	at     int64         // bytes that were read
}

var (
	_ interface {
		fs.NodeGetattrer
		fs.NodeOpener
	} = (*streamNode)(nil)
	_ interface {
		fs.FileReader
		fs.FileReleaser
	} = (*streamHandle)(nil)
)

// Getattr implements fs.NodeGetattrer. The size is not known.
func (n *streamNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.SetTimeout(nameTTL)
	n.dir.setAttr(&out.Attr)
	out.Mode = fuse.S_IFREG | 0o444
	return fs.OK
}

// Open implements fs.NodeOpener.
func (n *streamNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return nil, 0, syscall.EROFS
	}
	user, err := requesterOf(ctx).user()
	if err != nil {
		return nil, 0, syscall.EIO
	}
	stream, err := n.dir.config.Links.Open(n.name, user)
	if err != nil {
		return nil, 0, fs.ToErrno(err)
	}
	return &streamHandle{stream: stream, turn: make(chan struct{}, 1)}, fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NONSEEKABLE,
		fs.OK
}

// Read implements fs.FileReader.
func (h *streamHandle) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	ctx, cancel := killed.Context(ctx)
	defer cancel()
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return nil, syscall.EINTR
	}
	if off != h.at {
		return nil, syscall.ESPIPE
	}
	n, err := h.stream.Read(ctx, dest)
	if err != nil && err != io.EOF { // a failure may wrap io.EOF
		return nil, errnoOf(ctx)
	}
	h.at += int64(n)
	return fuse.ReadResultData(dest[:n]), fs.OK
}

// Release implements fs.FileReleaser.
func (h *streamHandle) Release(context.Context) syscall.Errno {
	h.stream.Close()
	return fs.OK
}
