package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	"lighter/wire"
	"lighter/wire/client"
)

// A program lists the images of a hub.
func ExampleClient_Images() {
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != wire.ImagesPath(wire.DefaultDomain) {
			http.NotFound(w, req)
			return
		}
		_ = json.NewEncoder(w).Encode([]wire.Image{{Name: "tools/shell:1", State: wire.StateReady}})
	}))
	defer hub.Close()

	c, err := client.New(client.Options{URL: hub.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.CloseIdleConnections()
	images, err := c.Images(context.Background(), "")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, image := range images {
		fmt.Println(image.Name, image.State)
	}
	// Output: tools/shell:1 ready
}
