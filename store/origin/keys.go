package origin

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"lighter/proc"
)

// Keys returns the public keys of the only origin, if Learnable allows it.
func (f *Failover) Keys(ctx context.Context) (keys []ed25519.PublicKey, err error) {
	if err := f.Learnable(); err != nil {
		return nil, err
	}
	err = f.try(ctx, quick, func(ctx context.Context, o *origin, others int) (err error) {
		ctx, cancel := share(ctx, others)
		defer cancel()
		keys, err = o.client.KeysFrom(ctx, o.checkOwner)
		return err
	})
	return keys, err
}

// Learnable returns nil if the key can be learned from the origins, else the reason why not. The
// key can be learned only if there is a single origin, on this machine. Of several origins, the
// first to answer would decide for all.
func (f *Failover) Learnable() error {
	if len(f.all) == 0 {
		return errNoHub
	}
	if len(f.all) > 1 {
		return fmt.Errorf("cannot learn the key: several hubs are configured (%s)", f.URL())
	}
	if !f.HasLoopback() {
		return fmt.Errorf("hub %s is not on this machine", f.URL())
	}
	return nil
}

// checkOwner refuses a hub that neither root nor the user of this process runs. Any user can
// listen on a port, or at a path in a directory open to all, before the hub does.
func (o *origin) checkOwner(conn net.Conn) error {
	uid, err := ownerOf(conn)
	if err != nil {
		return fmt.Errorf("hub %s: find the user that runs it: %w", o.url, err)
	}
	if uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("hub %s is run by user %d, neither by root nor by the node's own user", o.url, uid)
	}
	return nil
}

// ownerOf returns the user of the process at the other end of a connection on this machine. It is
// called after that process has sent something.
func ownerOf(conn net.Conn) (uid int, err error) {
	switch c := conn.(type) {
	case watchedConn:
		return ownerOf(c.Conn)
	case *tls.Conn:
		return ownerOf(c.NetConn())
	case *net.UnixConn:
		peer, err := proc.Peer(c)
		if err != nil {
			return 0, err
		}
		return int(peer.Uid), nil
	case *net.TCPConn:
		return ownerOfTCP(c)
	}
	return 0, fmt.Errorf("connection of unknown type %T", conn)
}

// ownerOfTCP finds the other end among the sockets of this network namespace. Its owner is the
// process that accepted the connection, which need not be the one that listens now.
func ownerOfTCP(conn *net.TCPConn) (uid int, err error) {
	ours, theirs := addressOf(conn.LocalAddr()), addressOf(conn.RemoteAddr())
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		file, err := os.Open(table)
		if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			continue
		}
		if err != nil {
			return 0, err
		}
		uid, found, err := findOwner(file, theirs, ours)
		file.Close()
		if err != nil || found {
			return uid, err
		}
	}
	return 0, fmt.Errorf("no process of this network namespace has the connection from %s to %s", ours, theirs)
}

func addressOf(address net.Addr) netip.AddrPort {
	tcp, _ := address.(*net.TCPAddr)
	bound := tcp.AddrPort()
	return netip.AddrPortFrom(bound.Addr().Unmap().WithZone(""), bound.Port())
}

// findOwner returns the user that owns the established connection from local to remote in a table
// in the format of /proc/net/tcp. A connection that no process has open counts as not found; the
// table lists it as root's.
func findOwner(table io.Reader, local, remote netip.AddrPort) (uid int, found bool, err error) {
	const (
		localField, remoteField, stateField, uidField, inodeField = 1, 2, 3, 7, 9

		established = "01"
		noProcess   = "0"
	)
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= inodeField || fields[stateField] != established || fields[inodeField] == noProcess ||
			parseSocket(fields[localField]) != local || parseSocket(fields[remoteField]) != remote {
			continue
		}
		uid, err := strconv.Atoi(fields[uidField])
		return uid, err == nil, err
	}
	return 0, false, lines.Err()
}

// parseSocket parses an address of /proc/net/tcp: 32-bit words in the machine's byte order, a
// colon and the port, in hexadecimal digits. It returns the zero address for anything else.
func parseSocket(text string) netip.AddrPort {
	const digits = 8 // of a word
	words, port, _ := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}
	}
	var b []byte
	for ; len(words) >= digits; words = words[digits:] {
		word, err := strconv.ParseUint(words[:digits], 16, 32)
		if err != nil {
			return netip.AddrPort{}
		}
		b = binary.NativeEndian.AppendUint32(b, uint32(word))
	}
	address, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(address.Unmap(), uint16(number))
}
