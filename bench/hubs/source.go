package hubs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/test/testkit/layout"
	"lighter/wire"
)

const (
	processRatio = 1.5       // target, at least: throughput of two processes : throughput of one
	manyImages   = 20        // images that are added
	imageBytes   = 40 << 20  // of each image
	connection   = 100e6 / 8 // bytes a second of one connection

	diskRatio = 0.6 // target: bytes of added images : bytes of pushed images
)

// source is a registry that serves OCI layouts, by the names of their directories.
type source struct {
	*httptest.Server
	dir string
}

// newSource serves the layouts below dir. rate limits each connection, in bytes a second; 0: no
// limit.
func newSource(dir string, rate float64) *source {
	s := &source{dir: dir}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.answer))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if rate > 0 {
		s.Listener = limitedListener{s.Listener, rate}
	}
	s.Start()
	return s
}

// add returns the request to add an image of the source.
func (s *source) add(image string) wire.Add {
	return wire.Add{Source: "docker://" + strings.TrimPrefix(s.URL, "http://") + "/" + image + ":latest",
		Name: image + ":latest", PlainHTTP: true}
}

func (s *source) answer(w http.ResponseWriter, req *http.Request) {
	rest := strings.TrimPrefix(req.URL.Path, "/v2/")
	image, rest, _ := strings.Cut(rest, "/")
	kind, reference, _ := strings.Cut(rest, "/")
	dir := filepath.Join(s.dir, filepath.Base(image))
	switch {
	case image == "":
		w.WriteHeader(http.StatusOK)
	case kind == "manifests":
		text, err := manifestText(dir)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(text).String())
		_, _ = w.Write(text)
	default:
		http.ServeFile(w, req, layout.Blob(dir, ocispec.Descriptor{Digest: digest.Digest(reference)}))
	}
}

// limitedListener limits the rate at which each of its connections sends.
type limitedListener struct {
	net.Listener
	rate float64
}

func (l limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &limitedConn{Conn: conn, rate: l.rate}, nil
}

type limitedConn struct {
	net.Conn
	rate float64
	next time.Time // when the connection has sent what was written until now
}

// Write writes a piece after the previous one was sent at the connection's rate.
func (c *limitedConn) Write(b []byte) (n int, err error) {
	const piece = 64 << 10
	for len(b) > 0 && err == nil {
		if now := time.Now(); c.next.Before(now) {
			c.next = now
		} else {
			time.Sleep(c.next.Sub(now))
		}
		var k int
		k, err = c.Conn.Write(b[:min(piece, len(b))])
		c.next = c.next.Add(time.Duration(float64(k) / c.rate * float64(time.Second)))
		n, b = n+k, b[k:]
	}
	return n, err
}

// processes compares the throughput of one process of a hub with that of two processes, which share
// PostgreSQL and S3. They add images from a source that limits the rate of each connection.
func (r *run) processes(ctx context.Context) error {
	dir := filepath.Join(r.dir, "images")
	for n := range manyImages {
		if err := makeImage(filepath.Join(dir, fmt.Sprintf("image-%d", n)), n); err != nil {
			return err
		}
	}
	from := newSource(dir, connection)
	defer from.Close()
	shared, end, err := startShared()
	if err != nil {
		return err
	}
	defer end()
	var one, two []float64
	for range r.Rounds {
		for _, times := range []*[]float64{&one, &two} {
			count := 1
			if times == &two {
				count = 2
			}
			took, err := r.addMany(ctx, from, shared, count)
			if err != nil {
				return err
			}
			*times = append(*times, took)
		}
	}
	// The ratio of two throughputs is the inverse of the ratio of the times.
	r.ratio("processes", "throughput of two : one, 20 images", one, two, -processRatio)
	return nil
}

// makeImage makes the OCI layout of image n. The image has one layer of random files, which no
// other image has.
func makeImage(dir string, n int) error {
	m, err := makeLayout(dir)
	if err != nil {
		return err
	}
	return errors.Join(m.add(func(l *layout.Layer) error {
		random := rand.NewChaCha8(sha256.Sum256([]byte{byte(n)}))
		const file = 1 << 20
		for i := range imageBytes / file {
			content := make([]byte, file)
			_, _ = random.Read(content)
			if err := l.File(fmt.Sprintf("file-%d", i), content); err != nil {
				return err
			}
		}
		return nil
	}), m.write())
}

// addMany returns the seconds in which an empty hub of count processes adds all images. The
// requests go to each process in turn.
func (r *run) addMany(
	ctx context.Context, from *source, shared func() (store, error), count int,
) (took float64, err error) {
	s, err := shared()
	if err != nil {
		return 0, err
	}
	var hub []*process
	defer func() {
		for _, p := range hub {
			err = errors.Join(err, p.stop())
		}
	}()
	for range count {
		p, err := r.startNext(ctx, s, hub)
		if err != nil {
			return 0, err
		}
		hub = append(hub, p)
	}
	return seconds(func() error {
		group, ctx := errgroup.WithContext(ctx)
		for n := range manyImages {
			p, image := hub[n%count], fmt.Sprintf("image-%d", n)
			group.Go(func() error {
				_, err := p.Add(ctx, from.add(image), func(wire.Progress) {})
				if err != nil {
					return err
				}
				return p.ready(ctx, image+":latest")
			})
		}
		return group.Wait()
	})
}

// startNext starts one more process of a hub. All have the same signing key.
func (r *run) startNext(ctx context.Context, s store, others []*process) (*process, error) {
	root := r.nextRoot()
	if len(others) > 0 {
		key, err := os.ReadFile(filepath.Join(others[0].root, "hub.key"))
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(root, 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(root, "hub.key"), key, 0o600); err != nil {
			return nil, err
		}
	}
	return r.startAt(ctx, r.Lighter, root, s, "")
}

// disk compares the disk space of the benchmark's images after they were added from a registry with
// their disk space after they were pushed. A hub stores all blobs of a pushed image.
func (r *run) disk(ctx context.Context) error {
	images := []string{"base", "python", "sci", "ml", "torch"}
	dir := filepath.Join(r.dir, "registry")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, image := range images {
		from, err := r.config.Layout(image)
		if err == nil {
			err = os.Symlink(from, filepath.Join(dir, image))
		}
		if err != nil {
			return err
		}
	}
	from := newSource(dir, 0)
	defer from.Close()
	added, err := r.diskOf(ctx, "added", images, func(p *process, image string) error {
		_, err := p.Add(ctx, from.add(image), func(wire.Progress) {})
		return err
	})
	if err != nil {
		return err
	}
	pushed, err := r.diskOf(ctx, "pushed", images, func(p *process, image string) error {
		layout, err := r.config.Layout(image)
		if err != nil {
			return err
		}
		return p.push(ctx, layout, image+":latest")
	})
	if err != nil {
		return err
	}
	r.add(Result{Figure: "disk", What: "added : all blobs kept", Value: added / pushed, Unit: "ratio",
		All: []float64{added}, Base: []float64{pushed}}, diskRatio)
	return nil
}

// diskOf returns the bytes that images take in an empty hub, including the startup packs of
// guesses. bring pushes or adds an image.
func (r *run) diskOf(
	ctx context.Context, how string, images []string, bring func(p *process, image string) error,
) (bytes float64, err error) {
	p, err := r.start(ctx, r.Lighter, store{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	for _, image := range images {
		if err := bring(p, image); err != nil {
			return 0, fmt.Errorf("image %s: %w", image, err)
		}
		if err := p.ready(ctx, image+":latest"); err != nil {
			return 0, err
		}
	}
	if err := p.settled(ctx); err != nil {
		return 0, err
	}
	for _, kind := range []string{"objects", "registry"} {
		n, err := used(filepath.Join(p.root, kind))
		if err != nil {
			return 0, err
		}
		bytes += float64(n)
		r.add(Result{Figure: "disk", What: how + ": " + kind, Value: float64(n) / 1e6, Unit: "MB"}, 0)
	}
	return bytes, nil
}
