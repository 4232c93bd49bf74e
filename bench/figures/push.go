package figures

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/bench"
	"lighter/sleep"
	"lighter/test/testkit/site"
	"lighter/wire"
)

const (
	// pushesTogether is how many tags are pushed at a time.
	pushesTogether = 8
	// readyLimit bounds the time until the hub has ingested them, readyInterval is the time between
	// two looks whether it has.
	readyLimit    = 30 * time.Minute
	readyInterval = 5 * time.Second
)

// pushTags gives the image NAME:latest of the hub further tags, from 0 on, and waits until all are
// ready.
func (r *run) pushTags(ctx context.Context, name string, number int) error {
	manifests := r.Site.Hub.URL + "/v2/" + name + "/manifests/"
	manifest, err := request(ctx, http.MethodGet, manifests+"latest", nil)
	if err != nil {
		return err
	}
	began := time.Now()
	pushes, pushing := errgroup.WithContext(ctx)
	pushes.SetLimit(pushesTogether)
	for n := range number {
		pushes.Go(func() error {
			_, err := request(pushing, http.MethodPut, manifests+strconv.Itoa(n), manifest)
			return err
		})
	}
	if err := pushes.Wait(); err != nil {
		return err
	}
	for time.Since(began) < readyLimit {
		ready, err := readyImages(ctx, r.Site.Hub, name)
		if err != nil {
			return err
		}
		if ready == number+1 {
			bench.Say("the hub has %d images %s:* after %s", ready, name,
				bench.Seconds(time.Since(began).Seconds()))
			return nil
		}
		if !sleep.For(ctx, readyInterval) {
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("the hub has not made %d images %s:* ready within %s", number+1, name, readyLimit)
}

// readyImages returns how many ready images NAME:TAG a hub has.
func readyImages(ctx context.Context, hub *site.Hub, name string) (number int, err error) {
	out, err := hub.Lighter(ctx, "images", "--json")
	if err != nil {
		return 0, err
	}
	var images []wire.Image
	if err := json.Unmarshal([]byte(out), &images); err != nil {
		return 0, err
	}
	for _, i := range images {
		if i.State == wire.StateReady && strings.HasPrefix(i.Name, name+":") {
			number++
		}
	}
	return number, nil
}

// request sends a request about a manifest to the hub's registry, and returns the answer.
func request(ctx context.Context, method, url string, body []byte) (answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", ocispec.MediaTypeImageManifest)
	req.Header.Set("Content-Type", ocispec.MediaTypeImageManifest)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, answer)
	}
	return answer, err
}
