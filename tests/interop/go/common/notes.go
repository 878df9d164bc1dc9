package common

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"sync"
)

// Notes are what a member of a group writes down: what it read, committed, was assigned and gave up, in that order.
// Its methods can be called from any goroutine; a commit keeps all others waiting, so that its line tells the truth.
type Notes struct {
	mutex       sync.Mutex
	file        *os.File
	out         *bufio.Writer
	positions   map[int32]int64
	commitEvery int
	uncommitted int
}

// NewNotes opens the file of the argument `out`.
func NewNotes(args Arguments) (*Notes, error) {
	file, err := os.Create(args["out"])
	if err != nil {
		return nil, err
	}
	positions := map[int32]int64{}
	return &Notes{file: file, out: bufio.NewWriter(file), positions: positions, commitEvery: args.Number("commit_every")}, nil
}

// Close writes what is still kept back.
func (n *Notes) Close() error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if err := n.out.Flush(); err != nil {
		return err
	}
	return n.file.Close()
}

// Read writes down a record, and says whether it is time to commit.
func (n *Notes) Read(partition int32, offset int64, value []byte) bool {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	fmt.Fprintf(n.out, "r %d %d %s\n", partition, offset, value)
	n.positions[partition] = offset + 1
	n.uncommitted++
	return n.uncommitted >= n.commitEvery
}

// Flush makes visible what was written down.
func (n *Notes) Flush() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.out.Flush()
}

// Commit has the positions of these partitions committed, or of all where none are named.
func (n *Notes) Commit(partitions []int32, commit func(offsets map[int32]int64) error) error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	// What is committed has to be written down, whatever kills us in between.
	if err := n.out.Flush(); err != nil {
		return err
	}
	offsets := n.positionsOf(partitions)
	if len(offsets) > 0 {
		if err := commit(offsets); err != nil {
			return err
		}
	}
	n.uncommitted = 0
	for partition, offset := range offsets {
		fmt.Fprintf(n.out, "c %d %d\n", partition, offset)
	}
	return n.out.Flush()
}

func (n *Notes) positionsOf(partitions []int32) map[int32]int64 {
	if partitions == nil {
		return maps.Clone(n.positions)
	}
	found := map[int32]int64{}
	for _, partition := range partitions {
		if position, read := n.positions[partition]; read {
			found[partition] = position
		}
	}
	return found
}

// Assigned writes down partitions that the member has now.
func (n *Notes) Assigned(partitions []int32) {
	n.write("assigned", partitions)
}

// Gone writes down partitions that the member gave up ("revoked") or was robbed of ("lost").
func (n *Notes) Gone(what string, partitions []int32) {
	n.mutex.Lock()
	for _, partition := range partitions {
		delete(n.positions, partition)
	}
	n.mutex.Unlock()
	n.write(what, partitions)
}

func (n *Notes) write(what string, partitions []int32) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, partition := range partitions {
		fmt.Fprintf(n.out, "%s %d\n", what, partition)
	}
	n.out.Flush()
}
