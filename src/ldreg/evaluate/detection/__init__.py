"""Object detection and instance segmentation: Mask R-CNN with the C4 shape on an encoder, judged as COCO does."""
