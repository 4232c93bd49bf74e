package hub

import (
	"context"
	"fmt"
	"net"

	"lighter/socket"
)

// listenAdmin listens at admin_listen. It returns nil if admin_listen is not configured: changes
// are then made at listen.
func (c *Config) listenAdmin() (net.Listener, error) {
	if c.AdminListen == "" {
		return nil, nil
	}
	listener, err := socket.ListenAddress(context.Background(), c.AdminListen)
	if err != nil {
		return nil, fmt.Errorf("listen for administrators: %w", err)
	}
	return listener, nil
}
