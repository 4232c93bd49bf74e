package public

import (
	"net/http"
	"testing"
)

// answering answers each request with status 200.
type answering struct{}

func (answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// Plain HTTP is used without permission only within this machine.
func TestPlainHTTPHasToBeAllowed(t *testing.T) {
	for url, want := range map[string]bool{
		"http://localhost:5000/v2/": true, "http://127.0.0.1/v2/": true, "http://[::1]:1/": true,
		"https://reg.example/":   true,
		"http://reg.example/v2/": false, "http://10.0.0.1:5000/": false, "http://192.168.1.1/": false,
		"http://localhost.example/": false, "http://reg.local/": false,
	} {
		for _, allowed := range []bool{false, true} {
			req, err := http.NewRequest(http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			over := &Transport{PlainHTTP: func(string) bool { return allowed }, Next: answering{}}
			if _, err := over.RoundTrip(req); (err == nil) != (want || allowed) {
				t.Errorf("%s, plain HTTP allowed: %v: error %v, want none: %v", url, allowed, err, want || allowed)
			}
		}
	}
}
