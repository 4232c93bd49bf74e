package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"lighter/wire"
)

// SendHeld reports what a holder has. It returns the reported trees that the hub does not have.
func (c *Client) SendHeld(ctx context.Context, held wire.Held) (wire.Unknown, error) {
	body, err := json.Marshal(held)
	if err != nil {
		return wire.Unknown{}, err
	}
	r := request{method: http.MethodPost, path: wire.HeldPath(c.Domain()), body: body}
	return ask[wire.Unknown](ctx, c, r, maxAnswer)
}

// Holders returns the nodes and mirrors that have reported their trees. With a name, it returns
// only those that have an image of that name.
func (c *Client) Holders(ctx context.Context, name string) ([]wire.Holder, error) {
	r := request{method: http.MethodGet, path: wire.HoldersPath(c.Domain())}
	if name != "" {
		r.query = byName(name)
	}
	return ask[[]wire.Holder](ctx, c, r, 0)
}

// ForgetHolder makes the hub forget a holder and its report. id is wire.Holder.ID.
func (c *Client) ForgetHolder(ctx context.Context, id string) error {
	return c.send(ctx, request{method: http.MethodDelete, path: wire.HoldersPath(c.Domain()),
		query: url.Values{"holder": {id}}})
}
