// Package sitetest has what tests do with a site (package site): they start one, which ends with
// the test, ask its node for its status, and compare the files of images with those that overlayfs
// unpacks. Errors fail the test.
package sitetest

import (
	"os"
	"testing"

	"lighter/node/report"
	"lighter/test/testkit/site"
)

// Start starts a site, and closes it at the end of the test. The test fails if something of the
// site is left then. If the test has failed, it shows the node's log.
func Start(tb testing.TB, options site.Options) *site.Site {
	tb.Helper()
	s, err := site.Start(tb.Context(), options)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			log, _ := os.ReadFile(s.Machine.NodeLog()) // for information only
			tb.Logf("the node's log:\n%s", log)
		}
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// Status returns the status of the site's node.
func Status(tb testing.TB, s *site.Site) (st report.Status) {
	tb.Helper()
	if err := s.Machine.NodeStatus(tb.Context(), &st); err != nil {
		tb.Fatal(err)
	}
	return st
}
