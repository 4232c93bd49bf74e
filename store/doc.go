// Package store reads chunks: from the cache on this machine, or else from a Source. It verifies
// every chunk that it returns. If a source lies, a read is retried; if the cache fails, the chunk
// is fetched. In no case does a reader get a wrong byte. The package does not know what chunks are
// for.
//
// A read passes these steps. A cache hit ends at the first step. NewFetcher builds the steps from
// the decoder to the source. Each of them wraps the next one: both its request and the callback
// that receives its answer. The source calls that callback while it can still ask another origin.
// So if the decoder finds an answer wrong, the source asks the next origin.
//
//	Share.Cached   share.go     the cache on this machine (cache.go)
//	retry          retry.go     one backoff, until the reader's deadline
//	flights        flights.go   readers of a unit share a request; then cache.go stores it
//	decoder        decode.go    decodes an answer and verifies the chunk
//	gate           gate.go      limits the flights, with one fair queue for all shares
//	link           link.go      estimates RTT and bandwidth; room.go: background requests wait
//	backoff        backoff.go   background requests pause while the source fails
//	Source         source.go    a chunk by reference, or a whole unit; does its own failover
//
// A share is one device's part of a node's requests. A flight is one request for a unit or chunk,
// shared by its readers. The gate admits a flight that a reader waits for (urgent) before others.
//
// The steps above flights belong to one reader, the steps below it to a request that several
// readers may share. So retry is above flights: each reader has its own deadline.
package store
