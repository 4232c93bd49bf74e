package figures

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/bench"
	"lighter/sleep"
	"lighter/test/testkit/site"
)

const (
	throughImage    = "sci"
	throughWorkload = "sci/bash"
	// Targets: the first pull through the hub : straight, the second node's start : the start of an
	// image that was added by hand, and many clients : the time that one client's link needs.
	throughFirst  = 1.1
	throughSecond = 1.05
	throughMany   = 1.5
	// throughCount is how many clients pull an image at once. The link of each carries
	// throughSpeed bytes a second: the links of all together are slower than this machine.
	throughCount = 200
	throughSpeed = 1.25e6
	manyImage    = "base"
)

// through measures pulls through a hub that has never seen the image.
func (r *run) through(ctx context.Context) error {
	if err := r.Need(ctx, throughImage, manyImage); err != nil {
		return err
	}
	if _, err := bench.AwaitLayout(ctx, r.Site.Hub, throughImage, 0); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "through-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pull, err := r.throughPuller(dir)
	if err != nil {
		return err
	}
	var straight, first, byHand, second []float64
	for round := range r.Rounds {
		one, err := r.throughRound(ctx, pull)
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		straight, first = append(straight, one.straight), append(first, one.first)
		byHand, second = append(byHand, one.byHand), append(second, one.second)
	}
	r.rows = append(r.rows, timesRow(throughImage, "pull straight from the registry", site.Overlayfs, straight),
		timesRow(throughImage, "first pull through the hub", site.Overlayfs, first),
		timesRow(throughImage, "start after an add by hand", site.Lighter, byHand),
		timesRow(throughImage, "start after another node's pull through the hub", site.Lighter, second))
	r.judge("through", "first pull of "+throughImage+" through the hub : straight", bench.Median(straight),
		bench.Median(first), throughFirst)
	r.judge("through", "the next node's start : that of an image added by hand", bench.Median(byHand),
		bench.Median(second), throughSecond)
	return r.throughMany(ctx)
}

// throughRegistry is HOST:PORT of the site's registry.
func throughRegistry() string { return strings.TrimSuffix(site.Reference(""), "/:latest") }

// throughPuller returns a puller that asks the second hub first.
func (r *run) throughPuller(dir string) (bench.Puller, error) {
	hosts := filepath.Join(dir, "hosts", throughRegistry())
	text := fmt.Sprintf("server = \"http://%s\"\n\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
		throughRegistry(), site.SpareAddress)
	err := errors.Join(os.MkdirAll(hosts, 0o755), os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(text), 0o644))
	return func(ctx context.Context, snapshotter, ref string) (time.Duration, error) {
		start := time.Now()
		_, err := r.Site.Machine.Ctr(ctx, "images", "pull", "--hosts-dir", filepath.Dir(hosts), "--snapshotter",
			snapshotter, ref)
		return time.Since(start), err
	}, err
}

// throughTable is the configuration of a hub that serves reads of a registry.
func throughTable(registry string) string {
	return fmt.Sprintf("[[registry]]\nhost = %q\nprivate = true\nplain_http = true\npull_through = true\n", registry)
}

// throughTimes are the times of a round, in seconds.
type throughTimes struct{ straight, first, byHand, second float64 }

func (r *run) throughRound(ctx context.Context, pull bench.Puller) (one throughTimes, err error) {
	ref := site.Reference(throughImage)
	timePull := func(pull bench.Puller) (float64, error) {
		if err := r.Wipe(ctx); err != nil {
			return 0, err
		}
		took, err := pull(ctx, site.Overlayfs, ref)
		return took.Seconds(), err
	}
	r.Site.UseHub(r.Site.Hub)
	started, err := r.throughStart(ctx, r.Site.Machine.Pull, site.Lighter)
	if err != nil {
		return one, err
	}
	one.byHand = started.Total()
	if one.straight, err = timePull(r.Site.Machine.Pull); err != nil {
		return one, err
	}
	err = r.withHub(ctx, throughTable(throughRegistry()), func(hub *site.Hub) error {
		if one.first, err = timePull(pull); err != nil {
			return err
		}
		name := throughRegistry() + "/" + throughImage
		if err := awaitReady(ctx, hub, name+":latest", time.Second); err != nil {
			return err
		}
		if _, err := bench.AwaitLayout(ctx, hub, name, 0); err != nil {
			return err
		}
		r.Site.UseHub(hub)
		started, err = r.throughStart(ctx, pull, site.Lighter)
		one.second = started.Total()
		return err
	})
	bench.Say("%s: %s straight, %s through the hub; start: %s by hand, %s after another node's pull", throughImage,
		bench.Seconds(one.straight), bench.Seconds(one.first), bench.Seconds(one.byHand), bench.Seconds(one.second))
	return one, err
}

// throughStart measures a start on a wiped machine. With the node as snapshotter, it is lazy.
func (r *run) throughStart(ctx context.Context, pull bench.Puller, snapshotter string) (s bench.Start, err error) {
	w, err := r.throughCommand()
	if err != nil {
		return s, err
	}
	if err := r.Wipe(ctx); err != nil {
		return s, err
	}
	ref := site.Reference(throughImage)
	p, err := r.Pull(ctx, pull, snapshotter, ref)
	if err != nil {
		return s, err
	}
	s, err = r.Run(ctx, p, snapshotter, ref, w)
	if err == nil && snapshotter == site.Lighter {
		err = r.AssertLazy(ctx, throughImage)
	}
	return s, err
}

// throughCommand returns the workload that is started.
func (r *run) throughCommand() (bench.Workload, error) {
	for _, w := range r.workloads {
		if w.String() == throughWorkload {
			return w, nil
		}
	}
	return bench.Workload{}, fmt.Errorf("there is no workload %s", throughWorkload)
}

// throughMany measures many clients that pull an image through a hub at once, each over a slow link
// of its own.
func (r *run) throughMany(ctx context.Context) error {
	front, err := newCounter(throughRegistry())
	if err != nil {
		return err
	}
	defer front.close()
	return r.withHub(ctx, throughTable(front.address()), func(hub *site.Hub) error {
		return r.throughClients(ctx, hub, front)
	})
}

// throughClients lets the clients pull from a registry that counts its requests.
func (r *run) throughClients(ctx context.Context, hub *site.Hub, front *counter) error {
	at, query := hub.URL+"/v2/"+manyImage, "?ns="+front.address()
	b, err := request(ctx, http.MethodGet, at+"/manifests/latest"+query, nil)
	if err != nil {
		return err
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(b, &manifest); err != nil {
		return err
	}
	blobs := append([]ocispec.Descriptor{manifest.Config}, manifest.Layers...) // the order of containerd
	var bytes int64
	for _, d := range blobs {
		bytes += d.Size
	}
	took, err := timed(func() error {
		clients, ctx := errgroup.WithContext(ctx)
		for range throughCount {
			clients.Go(func() error {
				for _, d := range blobs {
					if err := slowRead(ctx, at+"/blobs/"+d.Digest.String()+query); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return clients.Wait()
	})
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d clients pull %s at once : time of one client's link", throughCount, manyImage)
	r.judge("through", what, float64(bytes)/throughSpeed, took, throughMany)
	v := verdict{Figure: "through", What: "requests to the registry for the blob that was requested most often",
		Unit: "requests"}
	v.Value, v.Target, v.Result = atMost(float64(front.most("/v2/"+manyImage+"/blobs/")), 1)
	r.verdicts = append(r.verdicts, v)
	return nil
}

// slowRead reads an answer to its end, at throughSpeed.
func slowRead(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	began := time.Now()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, res.Status)
	}
	for read := int64(0); ; {
		n, err := io.CopyN(io.Discard, res.Body, 64<<10)
		read += n
		if err == io.EOF && read == res.ContentLength {
			return nil
		}
		if err != nil {
			return fmt.Errorf("GET %s: after %d bytes: %w", url, read, err)
		}
		due := began.Add(time.Duration(float64(read) / throughSpeed * float64(time.Second)))
		sleep.For(ctx, time.Until(due))
	}
}
