package client

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"

	"lighter/format/index"
	"lighter/wire"
)

// Chain returns what the hub knows of a chain, or chunk.ErrNotFound. Every answer 404 or 410 counts
// as chunk.ErrNotFound, even without wire.MissingHeader, because the web server of a mirror does
// not send that header. If such an answer was wrong, the image is unpacked as usual.
func (c *Client) Chain(ctx context.Context, chain string) (*wire.Chain, error) {
	return lookup[wire.Chain](ctx, c, wire.ChainPath(c.Domain(), chain))
}

// Manifest returns what the hub knows of the image with a manifest, or chunk.ErrNotFound.
// Every answer 404 or 410 counts as chunk.ErrNotFound, as for Chain.
func (c *Client) Manifest(ctx context.Context, digest string) (*wire.Manifest, error) {
	return lookup[wire.Manifest](ctx, c, wire.ManifestPath(c.Domain(), digest))
}

// Soon returns when an image that is pending will be ready. If no pending image has the manifest,
// or the hub cannot say, the error is chunk.ErrNotFound, as for Chain. Hubs of earlier versions
// never can.
func (c *Client) Soon(ctx context.Context, digest string) (*wire.Soon, error) {
	return lookup[wire.Soon](ctx, c, wire.SoonPath(c.Domain(), digest))
}

func lookup[T any](ctx context.Context, c *Client, path string) (*T, error) {
	answer, err := ask[T](ctx, c, request{method: http.MethodGet, path: path}, maxAnswer)
	if refused, ok := errors.AsType[*Error](err); ok {
		refused.Missing = refused.Status == http.StatusNotFound || refused.Status == http.StatusGone
	}
	if err != nil {
		return nil, err
	}
	return &answer, nil
}

// Tree returns the statement of a chain's tree. The hub makes the tree first if needed.
func (c *Client) Tree(ctx context.Context, chain string) (*index.Statement, error) {
	r := request{method: http.MethodGet, path: wire.TreePath(c.Domain(), chain)}
	answer, err := ask[index.Statement](ctx, c, r, maxAnswer)
	if err != nil {
		return nil, err
	}
	return &answer, nil
}

// Keys returns the hub's public keys, at least one. A caller that does not compare them with known
// keys trusts the network path to the hub.
func (c *Client) Keys(ctx context.Context) ([]ed25519.PublicKey, error) {
	return c.KeysFrom(ctx, func(net.Conn) error { return nil })
}

// KeysFrom returns the keys as Keys does, if verify accepts the connection on which the answer
// arrives. verify is called when the answer has begun to arrive.
func (c *Client) KeysFrom(ctx context.Context, verify func(net.Conn) error) ([]ed25519.PublicKey, error) {
	var conn net.Conn
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) { conn = got.Conn },
	})
	res, err := c.Get(ctx, wire.KeyPath(c.Domain()), nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if err := verify(conn); err != nil {
		return nil, err
	}
	var keys []ed25519.PublicKey
	text, err := io.ReadAll(io.LimitReader(res.Body, maxKeys))
	if err == nil {
		keys, err = wire.ParseKeys(text)
	}
	if err != nil {
		return nil, fmt.Errorf("hub %s: read the key: %w", c.url, err)
	}
	return keys, nil
}
