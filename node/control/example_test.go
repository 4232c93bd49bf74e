package control_test

import (
	"context"
	"errors"
	"fmt"

	"lighter/node/control"
)

// A command asks the daemon that uses a root. If no daemon runs, the error is ErrNoDaemon.
func ExampleClient() {
	_, err := control.New("/nowhere").Status(context.Background())
	fmt.Println(errors.Is(err, control.ErrNoDaemon))
	// Output: true
}
