package figures

import (
	"context"
	"errors"

	"lighter/test/testkit/site"
)

// withHub starts a second, empty hub with some lines of configuration, and calls fn with it. Nodes
// that fn starts may use it (Site.UseHub). Later ones use the site's hub again.
func (r *run) withHub(ctx context.Context, config string, fn func(h *site.Hub) error) (err error) {
	r.Site.SetHubConfig(config)
	h, err := r.Site.StartSecondHub(ctx)
	r.Site.SetHubConfig("")
	if err != nil {
		return err
	}
	defer func() {
		r.Site.UseHub(r.Site.Hub)
		err = errors.Join(err, h.Close())
	}()
	return fn(h)
}
