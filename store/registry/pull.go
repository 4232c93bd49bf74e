package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/containerd/platforms"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"lighter/wire"
)

// Image is an image in a registry.
type Image struct {
	Name string // full, with registry and tag or digest
	Size int64  // of the compressed layers, in bytes

	image  v1.Image
	layers []v1.Layer
}

// Find finds an image in its registry, with the credentials of this user's Docker configuration.
// platform is OS/ARCH[/VARIANT]; empty: this machine's. A name without a registry's host is a name
// of Docker Hub.
func Find(ctx context.Context, ref, platform string, plainHTTP bool) (*Image, error) {
	parsed, err := parse(ref, plainHTTP)
	if err != nil {
		return nil, err
	}
	want := platforms.DefaultSpec()
	if platform != "" {
		if want, err = platforms.Parse(platform); err != nil {
			return nil, err
		}
	}
	options := remoteOptions(ctx, onlyAllowed{plainHTTP, sourcePlainHTTP, remote.DefaultTransport})
	image, err := remote.Image(parsed, append(options, remote.WithPlatform(
		v1.Platform{OS: want.OS, Architecture: want.Architecture, Variant: want.Variant}))...)
	if err != nil {
		return nil, fmt.Errorf("find image %s: %w", parsed.Name(), err)
	}
	i := &Image{Name: parsed.Name(), image: image}
	if i.layers, err = image.Layers(); err != nil {
		return nil, fmt.Errorf("find the layers of image %s: %w", i.Name, err)
	}
	for _, layer := range i.layers {
		size, err := layer.Size()
		if err != nil {
			return nil, fmt.Errorf("find the layers of image %s: %w", i.Name, err)
		}
		i.Size += size
	}
	return i, nil
}

// The flags of commands that allow plain HTTP to another machine: for reading, and for pushing.
const (
	sourcePlainHTTP = "--source-plain-http"
	plainHTTPFlag   = "--plain-http"
)

// onlyAllowed refuses plain HTTP to other machines unless it is allowed.
type onlyAllowed struct {
	plainHTTP bool
	flag      string // that allows it
	next      http.RoundTripper
}

func (o onlyAllowed) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "http" && !o.plainHTTP && !wire.IsLoopback(req.URL.Hostname()) {
		return nil, fmt.Errorf("%s is not on this machine: use https, or allow plain HTTP with %s",
			req.URL.Host, o.flag)
	}
	return o.next.RoundTrip(req)
}

// Config returns the image's config. Its digest was verified.
func (i *Image) Config() ([]byte, error) { return i.image.RawConfigFile() }

// Layers passes the plain tar stream of each layer to unpack, the lowest first, and verifies its
// digests. unpack need not read to the end. report is called with the number of compressed bytes of
// the finished layers.
func (i *Image) Layers(ctx context.Context, unpack func(io.Reader) error, report func(done int64)) error {
	config, err := i.image.ConfigFile()
	if err != nil {
		return fmt.Errorf("read the config of image %s: %w", i.Name, err)
	}
	if len(config.RootFS.DiffIDs) != len(i.layers) {
		return fmt.Errorf("image %s has %d layers, and its config names %d", i.Name, len(i.layers),
			len(config.RootFS.DiffIDs))
	}
	var done int64
	for n, layer := range i.layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := read(layer, config.RootFS.DiffIDs[n], unpack); err != nil {
			return fmt.Errorf("pull layer %d of image %s: %w", n+1, i.Name, err)
		}
		size, err := layer.Size()
		if err != nil {
			return err
		}
		done += size
		report(done)
	}
	return nil
}

// read passes one layer to unpack. The library verifies the digest of the compressed bytes.
func read(layer v1.Layer, diffID v1.Hash, unpack func(io.Reader) error) (err error) {
	stream, err := layer.Uncompressed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	sum := sha256.New()
	plain := io.TeeReader(stream, sum)
	if err := unpack(plain); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return err
	}
	want, err := hex.DecodeString(diffID.Hex)
	if err != nil || diffID.Algorithm != "sha256" || !bytes.Equal(sum.Sum(nil), want) {
		return fmt.Errorf("its contents do not have the digest %s that the config names", diffID)
	}
	return nil
}
