// SPDX-License-Identifier: GPL-2.0
/*
 * pcisim - PCI host bridges whose configuration space lives in memory, for tests
 *
 * The functions come from the firmware file pcisim/topology.bin, which
 * tests/vm/config_space.py writes: of each 4096 bytes of configuration space
 * and a mask, of the same size, of the bits that software can write. Linux
 * enumerates them as it does real ones: sysfs, lspci, setpci, ASPM, ACS and
 * pci= options work. There are no BARs, interrupts or DMA.
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/firmware.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <linux/sched.h>
#include <asm/pci.h>

#define CFG 4096
#define MAGIC "PCISIM1"
#define MAX_ROOTS 64
#define MAX_DEVS 4096

/* The firmware file: a header, nroots roots, ndevs functions */
struct sim_hdr {
	char magic[8];
	__le32 nroots, ndevs;
} __packed;

struct sim_root {
	__le16 domain;
	u8 first, last;
	__le32 node;
} __packed;

struct sim_dev {
	__le16 domain;
	u8 bus, devfn;
	__le32 flags;
	u8 cfg[CFG];
	u8 wmask[CFG];
} __packed;

static char *topology = "pcisim/topology.bin";
module_param(topology, charp, 0444);
MODULE_PARM_DESC(topology, "firmware file with the topology");
static int log = 1;
module_param(log, int, 0644);
MODULE_PARM_DESC(log, "log writes: 0 none, 1 those of processes, 2 all");
static unsigned long user_writes;
module_param(user_writes, ulong, 0644);
MODULE_PARM_DESC(user_writes, "writes by processes; may be set to 0");

struct root {
	struct pci_sysdata sd;
	struct resource busn;
	struct pci_bus *bus;
};

static bool ready; /* enumeration is over */
static struct root *roots;
static struct sim_dev *devs;
static u32 nroots, ndevs;

static struct sim_dev *find(struct pci_bus *bus, unsigned int devfn)
{
	int dom = pci_domain_nr(bus);
	u32 i;

	for (i = 0; i < ndevs; i++)
		if (devs[i].bus == bus->number && devs[i].devfn == devfn &&
		    le16_to_cpu(devs[i].domain) == dom)
			return &devs[i];
	return NULL;
}

static int sim_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *val)
{
	struct sim_dev *d = find(bus, devfn);
	int i;

	*val = ~0u;
	if (!d || where < 0 || where + size > CFG)
		return PCIBIOS_DEVICE_NOT_FOUND;
	for (*val = 0, i = 0; i < size; i++)
		*val |= (u32)d->cfg[where + i] << (8 * i);
	return PCIBIOS_SUCCESSFUL;
}

/* Whether a process writes of its own accord: no kernel thread, no enumeration, no driver that udev has probe */
static bool by_process(void)
{
	return ready && current->mm && strcmp(current->comm, "modprobe") &&
	       strcmp(current->comm, "(udev-worker)");
}

static int sim_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 val)
{
	struct sim_dev *d = find(bus, devfn);
	bool user = by_process();
	u32 old = 0, now = 0;
	int i;

	if (!d || where < 0 || where + size > CFG)
		return PCIBIOS_DEVICE_NOT_FOUND;
	for (i = 0; i < size; i++) {
		u8 m = d->wmask[where + i], v = val >> (8 * i);

		old |= (u32)d->cfg[where + i] << (8 * i);
		d->cfg[where + i] = (d->cfg[where + i] & ~m) | (v & m);
		now |= (u32)d->cfg[where + i] << (8 * i);
	}
	if (user)
		user_writes++;
	if (log > 1 || (log == 1 && user))
		pr_info("pcisim: write %04x:%02x:%02x.%d +%03x.%c %0*x: %0*x -> %0*x (%s[%d])\n",
			pci_domain_nr(bus), bus->number, PCI_SLOT(devfn), PCI_FUNC(devfn), where,
			size == 1 ? 'B' : size == 2 ? 'W' : 'L', size * 2, val, size * 2, old, size * 2, now,
			current->comm, current->pid);
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops sim_ops = { .read = sim_read, .write = sim_write };

static void sim_remove(void)
{
	u32 i;

	pci_lock_rescan_remove();
	for (i = 0; roots && i < nroots; i++)
		if (roots[i].bus) {
			pci_stop_root_bus(roots[i].bus);
			pci_remove_root_bus(roots[i].bus);
		}
	pci_unlock_rescan_remove();
	kfree(roots);
	vfree(devs);
}

static int __init sim_init(void)
{
	const struct firmware *fw;
	const struct sim_hdr *h;
	const struct sim_root *r;
	struct device *parent;
	struct pci_bus *child;
	int err;
	u32 i;

	parent = root_device_register("pcisim");
	if (IS_ERR(parent))
		return PTR_ERR(parent);
	err = request_firmware(&fw, topology, parent);
	root_device_unregister(parent);
	if (err) {
		pr_err("pcisim: no firmware file %s (%d)\n", topology, err);
		return err;
	}
	h = (const void *)fw->data;
	err = -EINVAL;
	if (fw->size < sizeof(*h) || memcmp(h->magic, MAGIC, sizeof(h->magic)))
		goto out;
	nroots = le32_to_cpu(h->nroots);
	ndevs = le32_to_cpu(h->ndevs);
	if (nroots > MAX_ROOTS || ndevs > MAX_DEVS ||
	    fw->size != sizeof(*h) + nroots * sizeof(*r) + (size_t)ndevs * sizeof(*devs))
		goto out;
	err = -ENOMEM;
	r = (const void *)(h + 1);
	roots = kcalloc(nroots, sizeof(*roots), GFP_KERNEL);
	devs = vmalloc((size_t)ndevs * sizeof(*devs) + 1);
	if (!roots || !devs)
		goto out;
	memcpy(devs, r + nroots, (size_t)ndevs * sizeof(*devs));
	for (i = 0; i < nroots; i++) {
		struct root *s = &roots[i];
		LIST_HEAD(res);

		s->sd.domain = le16_to_cpu(r[i].domain);
		s->sd.node = (int)le32_to_cpu(r[i].node);
		if (s->sd.node >= 0 && !node_online(s->sd.node))
			s->sd.node = NUMA_NO_NODE;
		s->busn = (struct resource) {
			.name = "pcisim busn",
			.start = r[i].first,
			.end = r[i].last,
			.flags = IORESOURCE_BUS,
		};
		pci_add_resource(&res, &s->busn);
		pci_lock_rescan_remove();
		s->bus = pci_create_root_bus(NULL, r[i].first, &sim_ops, &s->sd, &res);
		if (!s->bus) {
			pci_unlock_rescan_remove();
			pci_free_resource_list(&res);
			pr_err("pcisim: cannot create root bus %04x:%02x\n", s->sd.domain, r[i].first);
			err = -EEXIST;
			goto out;
		}
		pci_scan_child_bus(s->bus);
		list_for_each_entry(child, &s->bus->children, node)
			pcie_bus_configure_settings(child);
		pci_bus_add_devices(s->bus);
		pci_unlock_rescan_remove();
	}
	ready = true;
	pr_info("pcisim: %u root buses, %u functions\n", nroots, ndevs);
	err = 0;
out:
	release_firmware(fw);
	if (err)
		sim_remove();
	return err;
}

static void __exit sim_exit(void)
{
	sim_remove();
}

module_init(sim_init);
module_exit(sim_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("PCI host bridges in memory, for tests");
