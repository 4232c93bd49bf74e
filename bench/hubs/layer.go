package hubs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/bench"
	"lighter/test/testkit/layout"
	"lighter/wire"
)

// Targets, in seconds.
const (
	layerAtMost = 0.5
	tagAtMost   = 0.1
)

// median adds the median of times in seconds.
func (r *run) median(figure, what string, all []float64, target float64) {
	r.add(Result{Figure: figure, What: what, Value: bench.Median(all), Unit: "s", All: all}, target)
}

// layer measures the time from the push of a manifest until its image is ready. The image has the
// layers of an image of the hub, and one more layer with one file. All blobs are pushed before. It
// also measures how long another tag takes that is pushed, and one that is added from a registry.
func (r *run) layer(ctx context.Context) (err error) {
	const image = "sci"
	from, err := r.config.Layout(image)
	if err != nil {
		return err
	}
	p, err := r.start(ctx, r.Lighter, store{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.push(ctx, from, image+":1"); err != nil {
		return err
	}
	if err := p.ready(ctx, image+":1"); err != nil {
		return err
	}
	if err := p.settled(ctx); err != nil {
		return err
	}
	upstream := newSource(filepath.Dir(from), 0)
	defer upstream.Close()
	var layers, pushed, added []float64
	for n := range r.Rounds {
		dir := filepath.Join(r.dir, fmt.Sprintf("layer-%d", n))
		err := layout.Extend(from, dir, func(l *layout.Layer) error {
			return l.File("opt/file.txt", bytes.Repeat([]byte(fmt.Sprintf("line of file %d\n", n)), 1000))
		})
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%s:layer-%d", image, n)
		took, err := p.pushManifest(ctx, dir, name)
		if err != nil {
			return err
		}
		layers = append(layers, took)
		if took, err = p.pushManifest(ctx, dir, name+"-again"); err != nil {
			return err
		}
		pushed = append(pushed, took)
		again := upstream.add(filepath.Base(from))
		again.Name = fmt.Sprintf("%s:added-%d", image, n)
		took, err = seconds(func() error {
			_, err := p.Add(ctx, again, func(wire.Progress) {})
			return err
		})
		if err != nil {
			return err
		}
		added = append(added, took)
		if err := p.settled(ctx); err != nil {
			return err
		}
	}
	r.median("layer", "one file on top of "+image, layers, layerAtMost)
	r.median("layer", "a second tag of the same image, pushed", pushed, tagAtMost)
	r.median("layer", "a second tag of "+image+", added from a registry", added, tagAtMost)
	return nil
}

// settled waits until the hub has no open job.
func (p *process) settled(ctx context.Context) error {
	for {
		jobs, err := p.Jobs(ctx, false)
		if err != nil || len(jobs) == 0 {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// pushManifest pushes a layout's last layer and config, and returns the seconds from the push of
// the manifest until its image is ready.
func (p *process) pushManifest(ctx context.Context, dir, name string) (float64, error) {
	manifest, err := layout.Manifest(dir)
	if err != nil {
		return 0, err
	}
	repository, tag, _ := strings.Cut(name, ":")
	if err := p.pushBlobs(ctx, dir, repository, len(manifest.Layers)-1); err != nil {
		return 0, err
	}
	return seconds(func() error {
		if err := p.putManifest(ctx, dir, repository, tag); err != nil {
			return err
		}
		return p.ready(ctx, name)
	})
}

// pushBlobs pushes a layout's config and its layers, except the has lowest layers, which the
// repository already has.
func (p *process) pushBlobs(ctx context.Context, dir, repository string, has int) error {
	manifest, err := layout.Manifest(dir)
	if err != nil {
		return err
	}
	for _, d := range append(manifest.Layers[has:], manifest.Config) {
		if err := p.pushBlob(ctx, repository, layout.Blob(dir, d), d); err != nil {
			return err
		}
	}
	return nil
}

// putManifest pushes a layout's manifest.
func (p *process) putManifest(ctx context.Context, dir, repository, tag string) error {
	text, err := manifestText(dir)
	if err == nil {
		_, err = p.send(ctx, http.MethodPut, "http://"+p.address+"/v2/"+repository+"/manifests/"+tag,
			ocispec.MediaTypeImageManifest, text)
	}
	return err
}

// manifestText returns the bytes of a layout's manifest.
func manifestText(dir string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	var index ocispec.Index
	if err == nil {
		err = json.Unmarshal(text, &index)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(layout.Blob(dir, index.Manifests[0]))
}

func (p *process) pushBlob(ctx context.Context, repository, path string, d ocispec.Descriptor) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	header, err := p.send(ctx, http.MethodPost, "http://"+p.address+"/v2/"+repository+"/blobs/uploads/", "", nil)
	if err != nil {
		return err
	}
	at, err := url.Parse(header.Get("Location"))
	if err != nil {
		return err
	}
	at.Scheme, at.Host = "http", p.address
	q := at.Query()
	q.Set("digest", d.Digest.String())
	at.RawQuery = q.Encode()
	_, err = p.send(ctx, http.MethodPut, at.String(), "application/octet-stream", text)
	return err
}

// send sends a request and returns the answer's header. An answer with a status of 300 or more is
// an error.
func (p *process) send(ctx context.Context, method, to, contentType string, body []byte) (http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, req.URL.Path, res.Status, text)
	}
	return res.Header, err
}

// used returns the sum of the sizes of all files below a directory.
func used(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	return bytes, err
}
