package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"lighter/wire"
)

// Wishlists lists the hub's wishlists, without their images and problems.
func (c *Client) Wishlists(ctx context.Context) ([]wire.WishlistState, error) {
	return ask[[]wire.WishlistState](ctx, c, request{method: http.MethodGet, path: wire.WishlistsPath(c.Domain())}, 0)
}

// Wishlist returns one wishlist with its images and problems.
func (c *Client) Wishlist(ctx context.Context, name string) (wire.WishlistState, error) {
	r := request{method: http.MethodGet, path: wire.WishlistsPath(c.Domain()), query: url.Values{"name": {name}}}
	states, err := ask[[]wire.WishlistState](ctx, c, r, 0)
	if err != nil || len(states) == 0 {
		return wire.WishlistState{}, err
	}
	return states[0], nil
}

// AddWishlist adds a wishlist, or changes one. It returns the job that reads it.
func (c *Client) AddWishlist(ctx context.Context, w wire.Wishlist) (wire.Job, error) {
	body, err := json.Marshal(w)
	if err != nil {
		return wire.Job{}, err
	}
	r := request{method: http.MethodPost, path: wire.WishlistsPath(c.Domain()), body: body}
	return ask[wire.Job](ctx, c, r, maxAnswer)
}

// SyncWishlist makes the hub read a wishlist as soon as possible, and returns the job. If confirm
// is true, the list may lose any share of its images.
func (c *Client) SyncWishlist(ctx context.Context, name string, confirm bool) (wire.Job, error) {
	query := url.Values{"name": {name}}
	if confirm {
		query.Set("confirm", "1")
	}
	r := request{method: http.MethodPost, path: wire.WishlistsPath(c.Domain()) + "/sync", query: query,
		body: []byte("{}")}
	return ask[wire.Job](ctx, c, r, maxAnswer)
}

// AwaitWishlist waits until the job of a wishlist has ended. It passes the progress to report.
// Progress.Wishlist of the result says what was done.
func (c *Client) AwaitWishlist(
	ctx context.Context, job int64, report func(wire.Progress),
) (wire.Progress, error) {
	r := request{method: http.MethodPost, path: wire.WishlistsPath(c.Domain()) + "/await",
		query: url.Values{"job": {strconv.FormatInt(job, 10)}}, body: []byte("{}")}
	return c.watch(ctx, r, report)
}

// PlanWishlist returns what the hub would do with a wishlist in Progress.Wishlist, and passes the
// progress to report. A list that has nothing but a name is one that the hub has.
func (c *Client) PlanWishlist(
	ctx context.Context, w wire.Wishlist, report func(wire.Progress),
) (wire.Progress, error) {
	body, err := json.Marshal(w)
	if err != nil {
		return wire.Progress{}, err
	}
	return c.watch(ctx, request{method: http.MethodPost, path: wire.WishlistsPath(c.Domain()) + "/plan", body: body},
		report)
}

// RemoveWishlist removes a wishlist. Its images go unless somebody else wants them.
func (c *Client) RemoveWishlist(ctx context.Context, name string) error {
	return c.send(ctx, request{method: http.MethodDelete, path: wire.WishlistsPath(c.Domain()),
		query: url.Values{"name": {name}}})
}
