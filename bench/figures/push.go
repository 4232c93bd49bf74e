package figures

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/bench"
	"lighter/sleep"
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

// pushTags pushes manifests into a repository of the hub, which has one image already, with the
// tags from 0 on. It waits until all images are ready.
func (r *run) pushTags(
	ctx context.Context, repository string, number int, manifest func(ctx context.Context, n int) ([]byte, error),
) error {
	began := time.Now()
	pushes, pushing := errgroup.WithContext(ctx)
	pushes.SetLimit(pushesTogether)
	for n := range number {
		pushes.Go(func() error {
			text, err := manifest(pushing, n)
			if err == nil {
				_, _, err = request(pushing, http.MethodPut, r.Site.Hub.URL+"/v2/"+repository+"/manifests/"+
					strconv.Itoa(n), ocispec.MediaTypeImageManifest, text)
			}
			return err
		})
	}
	if err := pushes.Wait(); err != nil {
		return err
	}
	for time.Since(began) < readyLimit {
		ready, err := r.ready(ctx, repository)
		if err != nil {
			return err
		}
		if ready == number+1 {
			bench.Say("the hub has %d images %s after %s", ready, repository,
				bench.Seconds(time.Since(began).Seconds()))
			return nil
		}
		if !sleep.For(ctx, readyInterval) {
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("the hub has not made %d images %s ready within %s", number+1, repository, readyLimit)
}

// ready returns how many ready images of a repository the hub has.
func (r *run) ready(ctx context.Context, repository string) (number int, err error) {
	out, err := r.Site.Hub.Lighter(ctx, "images", "--json")
	if err != nil {
		return 0, err
	}
	var images []wire.Image
	if err := json.Unmarshal([]byte(out), &images); err != nil {
		return 0, err
	}
	for _, i := range images {
		if i.State == wire.StateReady && strings.HasPrefix(i.Name, repository+":") {
			number++
		}
	}
	return number, nil
}

// pushBlob pushes a blob into a repository of the hub.
func (r *run) pushBlob(ctx context.Context, repository string, blob []byte) error {
	_, begun, err := request(ctx, http.MethodPost, r.Site.Hub.URL+"/v2/"+repository+"/blobs/uploads/", "", nil)
	if err != nil {
		return err
	}
	at, err := url.Parse(begun.Get("Location"))
	if err != nil {
		return err
	}
	query := at.Query()
	query.Set("digest", digest.FromBytes(blob).String())
	_, _, err = request(ctx, http.MethodPut, r.Site.Hub.URL+at.Path+"?"+query.Encode(), "application/octet-stream",
		blob)
	return err
}

// request sends a request to the hub's registry, and returns the answer. kind is the media type
// that is sent, or accepted.
func request(ctx context.Context, method, url, kind string, body []byte) (answer []byte, _ http.Header, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Accept", kind)
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, answer)
	}
	return answer, resp.Header, err
}
