package control_test

import (
	"context"
	"errors"
	"fmt"

	"lighter/node/control"
)

// A command asks the daemon that uses a root. Without one it gets ErrNoDaemon.
func ExampleClient() {
	_, err := control.New("/nowhere").Status(context.Background())
	fmt.Println(errors.Is(err, control.ErrNoDaemon))
	// Output: true
}
